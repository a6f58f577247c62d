"""What came of a payment, told to who asked for it."""

from headrace.base.clock import Clock
from headrace.base.ids import new_id
from headrace.control.alert_watch import subscribers
from headrace.spec.events import Event, EventType
from headrace.spec.payments import Payment, PaymentState
from headrace.storage.database import Database


def tell(database: Database, clock: Clock, payment: Payment) -> None:
    """Queue the event of a payment's end for the webhooks that want it."""
    succeeded = payment.state is PaymentState.SUCCEEDED
    event = Event(
        id=new_id("evt", clock),
        type=EventType.PAYMENT_SUCCEEDED if succeeded else EventType.PAYMENT_FAILED,
        tenant_id=payment.parent_id,
        occasion=f"{payment.id}:{payment.state}",
        create_time=clock.wall_s(),
        data={
            "payment_id": payment.id,
            "purpose": str(payment.purpose),
            "state": str(payment.state),
            "currency": payment.currency,
            "amount_units": payment.amount_units,
            "invoice_id": payment.invoice_id or None,
            "message": payment.message,
        },
    )
    database.events.add(event, subscribers(database, event))
