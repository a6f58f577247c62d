"""Stripe, by its own package: off-session payment intents, and refunds.

Needs the extra: pip install 'headrace[payments]'. Written for stripe 16 (API of 2026).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigurationError, Unavailable
from headrace.control.payments.provider import Answer, ChargeOrder, RefundOrder, Verdict

if TYPE_CHECKING:
    import stripe

timeout_s = 30.0
verdicts = {
    "succeeded": Verdict.SUCCEEDED,
    "processing": Verdict.PROCESSING,
    "pending": Verdict.PROCESSING,
}
retry_after_s = 30.0


class StripeProvider:
    """Payments through Stripe; synchronous, for a thread."""

    name = "stripe"

    def __init__(self, api_key: str, api_base: str = "") -> None:
        """`api_base` leads to another server that speaks Stripe's API; empty: Stripe's own."""
        try:
            import stripe  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigurationError(
                "payments need Stripe's package: pip install 'headrace[payments]'"
            ) from None
        self._stripe = stripe
        self._client = stripe.StripeClient(
            api_key,
            base_addresses={"api": api_base} if api_base else {},
            http_client=stripe.RequestsClient(timeout=timeout_s),
            max_network_retries=0,  # the payment's own loop asks again
        )

    def charge(self, order: ChargeOrder) -> Answer:
        """Create and confirm a payment intent; one that is being processed is asked for."""
        params: stripe.params.PaymentIntentCreateParams = {
            "amount": order.amount_units,
            "currency": order.currency.lower(),
            "customer": order.customer,
            "confirm": True,
            "off_session": True,
            "description": order.description,
        }
        if order.payment_method:
            params["payment_method"] = order.payment_method

        def ask() -> Answer:
            service = self._client.v1.payment_intents
            intent = service.create(params, {"idempotency_key": order.idempotency_key})
            if intent.status == "processing":  # the same key gives the first answer again
                intent = service.retrieve(intent.id)
            return answer_of(intent.status, intent.id)

        return self._asked(ask)

    def refund(self, order: RefundOrder) -> Answer:
        """Refund a payment intent."""

        def ask() -> Answer:
            service = self._client.v1.refunds
            refund = service.create(
                {"payment_intent": order.reference, "amount": order.amount_units},
                {"idempotency_key": order.idempotency_key},
            )
            if refund.status == "pending":
                refund = service.retrieve(refund.id)
            return answer_of(refund.status or "", refund.id)

        return self._asked(ask)

    def _asked(self, ask: Callable[[], Answer]) -> Answer:
        """The answer; refusals are answers, and everything else is for another time."""
        stripe = self._stripe
        try:
            return ask()
        except stripe.CardError as error:
            return Answer(Verdict.DECLINED, message=error.user_message or "the card was declined")
        except stripe.InvalidRequestError as error:
            return Answer(Verdict.DECLINED, message=f"Stripe refused the request: {error.code}")
        except stripe.AuthenticationError:
            raise Unavailable(
                "Stripe does not accept the configured key; correct the payments file",
                retry_after_s=retry_after_s,
            ) from None
        except stripe.StripeError as error:
            raise Unavailable(
                f"Stripe did not answer: {type(error).__name__}", retry_after_s=retry_after_s
            ) from None


def answer_of(status: str, reference: str) -> Answer:
    """Stripe's status of an intent or a refund; what needs a person at a browser is declined."""
    verdict = verdicts.get(status, Verdict.DECLINED)
    message = f"its status is {status}" if verdict is Verdict.DECLINED else ""
    return Answer(verdict, reference, message)
