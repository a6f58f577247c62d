"""`headrace payments`: transfers that came in, and money by a payment provider if there is one."""

from typing import Annotated

import msgspec
import typer

from headrace.base.errors import ConfigurationError
from headrace.cli.admin_client import path_of
from headrace.cli.output import format_dollars
from headrace.cli.platform import Platform, platform_command, platform_group
from headrace.cli.views import MoneyView, format_moment

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT", help="Its name or id.")]


class PaymentView(msgspec.Struct, frozen=True):
    """What is shown of a payment."""

    id: str
    tenant_id: str
    purpose: str
    state: str
    provider: str
    reference: str
    currency: str
    amount: str
    credit: MoneyView
    overpaid: MoneyView
    invoice_id: str | None
    message: str
    create_time: str


class RechargeView(msgspec.Struct, frozen=True):
    """Credit that is bought by itself."""

    below: MoneyView
    amount: MoneyView
    a_day_max: int


class AgreementView(msgspec.Struct, frozen=True):
    """How a tenant pays."""

    tenant_id: str
    customer: str
    payment_method: str | None
    recharge: RechargeView | None


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    group = platform_group(
        "payments", "Money that came: agree, list, pay, record, refund, resolve, reverse.", app
    )
    platform_command(group, "agree")(agree)
    platform_command(group, "list")(list_all)
    platform_command(group, "pay")(pay)
    platform_command(group, "record")(record)
    platform_command(group, "refund")(refund)
    platform_command(group, "resolve")(resolve)
    platform_command(group, "reverse")(reverse)


def agree(
    platform: Platform,
    tenant: TenantArgument,
    *,
    customer: Annotated[str, typer.Option(help="The provider's id of the tenant, as cus_...")],
    payment_method: Annotated[
        str | None, typer.Option(help="The provider's id of it; default: the customer's own.")
    ] = None,
    recharge_below_usd: Annotated[
        str | None, typer.Option(help="Buy credit when the balance is under this.")
    ] = None,
    recharge_usd: Annotated[str | None, typer.Option(help="How much credit to buy.")] = None,
    recharges_a_day: Annotated[int, typer.Option(min=1, max=100, help="At most.")] = 3,
) -> None:
    """Say how a tenant pays, and whether credit is bought by itself."""
    if (recharge_below_usd is None) != (recharge_usd is None):
        raise ConfigurationError("give both --recharge-below-usd and --recharge-usd, or none")
    body: dict[str, object] = {"customer": customer, "payment_method": payment_method}
    if recharge_below_usd is not None:
        body["recharge"] = {
            "below_usd": recharge_below_usd,
            "amount_usd": recharge_usd,
            "a_day_max": recharges_a_day,
        }
    answer = platform.client.send("PUT", f"/tenants/{path_of(tenant)}/payment-agreement", body)
    platform.show(answer, AgreementView, _agreement_fields)


def list_all(
    platform: Platform,
    *,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    invoice: Annotated[str | None, typer.Option(help="Only those of this number or id.")] = None,
) -> None:
    """List payments, the oldest first."""
    platform.show_list(
        platform.client.list("/payments", {"tenant": tenant, "invoice": invoice}),
        PaymentView,
        ("ID", "TENANT", "FOR", "BY", "REFERENCE", "STATE", ">AMOUNT", "WHEN", "WHY"),
        lambda payment: (
            payment.id,
            payment.tenant_id,
            payment.invoice_id or payment.purpose,
            payment.provider,
            payment.reference or "-",
            payment.state,
            f"{payment.amount} {payment.currency}",
            format_moment(payment.create_time),
            payment.message,
        ),
        empty="no payments yet; book a transfer with `headrace payments record INVOICE`",
    )


def pay(
    platform: Platform,
    invoice: Annotated[str, typer.Argument(metavar="INVOICE", help="Its number or id.")],
) -> None:
    """Have the provider take what is open of a final invoice."""
    answer = platform.client.send("POST", "/payments", {"invoice": invoice})
    platform.show(answer, PaymentView, _fields)


def record(
    platform: Platform,
    invoice: Annotated[str, typer.Argument(metavar="INVOICE", help="Its number or id.")],
    *,
    reference: Annotated[
        str, typer.Option(help="The bank's, or any that names this transfer alone.")
    ],
    amount: Annotated[
        str | None, typer.Option(help="In the invoice's currency; default: all that is open.")
    ] = None,
) -> None:
    """Book a transfer that came in, once for its reference; what is too much becomes credit."""
    path = f"/invoices/{path_of(invoice)}/payments"
    answer = platform.client.send("POST", path, {"reference": reference, "amount": amount})
    platform.show(answer, PaymentView, _fields)


def reverse(
    platform: Platform,
    payment: Annotated[str, typer.Argument(metavar="PAYMENT", help="The id of a transfer.")],
    *,
    reason: Annotated[str, typer.Option(help="Why it is taken back.")],
) -> None:
    """Take back a transfer that was recorded by mistake, or that the bank took back."""
    path = f"/payments/{path_of(payment)}/reverse"
    platform.show(platform.client.send("POST", path, {"reason": reason}), PaymentView, _fields)


def resolve(
    platform: Platform,
    payment: Annotated[str, typer.Argument(metavar="PAYMENT", help="The id of a payment.")],
    *,
    succeeded: Annotated[
        bool, typer.Option("--succeeded/--failed", help="What the provider says of it.")
    ],
    reason: Annotated[str, typer.Option(help="Who said so.")],
    reference: Annotated[str, typer.Option(help="The provider's own id of it.")] = "",
) -> None:
    """Say what became of a payment whose end is unknown, after asking the provider."""
    path = f"/payments/{path_of(payment)}/resolve"
    body = {"succeeded": succeeded, "reference": reference, "reason": reason}
    platform.show(platform.client.send("POST", path, body), PaymentView, _fields)


def refund(
    platform: Platform,
    payment: Annotated[str, typer.Argument(metavar="PAYMENT", help="The id of a recharge.")],
    amount_usd: Annotated[str, typer.Argument(metavar="DOLLARS", help="In whole cents.")],
) -> None:
    """Give back some of a recharge that was not used."""
    path = f"/payments/{path_of(payment)}/refunds"
    answer = platform.client.send("POST", path, {"amount_usd": amount_usd})
    platform.show(answer, PaymentView, _fields)


def _fields(payment: PaymentView) -> list[tuple[str, str]]:
    return [
        ("id", payment.id),
        ("for", payment.invoice_id or payment.purpose),
        ("by", f"{payment.provider} {payment.reference}".strip()),
        ("state", payment.state),
        ("amount", f"{payment.amount} {payment.currency}"),
        ("credit", format_dollars(payment.credit.nanousd)),
        ("of it overpaid", format_dollars(payment.overpaid.nanousd)),
    ]


def _agreement_fields(agreed: AgreementView) -> list[tuple[str, str]]:
    recharge = agreed.recharge
    words = "none"
    if recharge is not None:
        words = (
            f"{format_dollars(recharge.amount.nanousd)} when under "
            f"{format_dollars(recharge.below.nanousd)}, {recharge.a_day_max} a day at most"
        )
    return [
        ("tenant", agreed.tenant_id),
        ("customer", agreed.customer),
        ("payment method", agreed.payment_method or "the customer's own"),
        ("recharge", words),
    ]
