"""Usage for other systems: FOCUS rows for cost tools, CloudEvents for OpenMeter and Lago.

FOCUS is the FinOps Open Cost and Usage Specification, version 1.2: a row a tenant, project, model,
day and token class. CloudEvents is version 1.0 in its JSON form, an event a request; its id is the
request's, so that a meter which keeps ids counts each once however often it is sent.
"""

import csv
import datetime
import io
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal

import msgspec

from headrace.base.money import format_usd
from headrace.spec.invoices import TokenClass
from headrace.spec.settlements import Settlement

focus_columns = (
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodStart",
    "BillingPeriodEnd",
    "ChargePeriodStart",
    "ChargePeriodEnd",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "BilledCost",
    "EffectiveCost",
    "ListCost",
    "ContractedCost",
    "ConsumedQuantity",
    "ConsumedUnit",
    "PricingQuantity",
    "PricingUnit",
    "PricingCategory",
    "ProviderName",
    "PublisherName",
    "InvoiceIssuerName",
    "ServiceCategory",
    "ServiceName",
    "SkuId",
    "SubAccountId",
    "SubAccountName",
    "ResourceId",
    "Tags",
)
event_type = "headrace.request.settled"
event_source = "headrace"


class DailyUse(msgspec.Struct, frozen=True, kw_only=True):
    """What a project used of a model on a day, in one token class."""

    day: datetime.date
    tenant_id: str
    project_id: str
    model: str
    token_class: TokenClass
    tokens: int  # or as many of another unit
    amount_nanousd: int


def daily_uses(settlements: Iterable[Settlement]) -> list[DailyUse]:
    """Sums by day, tenant, project, model and class; what has no price yet costs nothing yet."""
    sums: dict[tuple[datetime.date, str, str, str, TokenClass], list[int]] = {}
    for settlement in settlements:
        day = datetime.datetime.fromtimestamp(settlement.settle_time, datetime.UTC).date()
        owner = (day, settlement.tenant_id, settlement.project_id, settlement.model)
        for token_class, tokens, amount in classes_of(settlement):
            row = sums.setdefault((*owner, token_class), [0, 0])
            row[0] += tokens
            row[1] += amount
    return [
        DailyUse(
            day=day,
            tenant_id=tenant_id,
            project_id=project_id,
            model=model,
            token_class=token_class,
            tokens=tokens,
            amount_nanousd=amount,
        )
        for (day, tenant_id, project_id, model, token_class), (tokens, amount) in sorted(
            sums.items()
        )
        if tokens or amount
    ]


def classes_of(settlement: Settlement) -> list[tuple[TokenClass, int, int]]:
    """Class, quantity and amount; classes inside others (reasoning, images) are shown by amount.

    Sound is in milliseconds."""
    usage, charge = settlement.usage, settlement.charge
    units = settlement.units
    amounts = (
        (0,) * 8
        if charge is None
        else (
            charge.input_nanousd + charge.embedding_nanousd + charge.image_nanousd,
            charge.cached_input_nanousd,
            charge.output_nanousd + charge.reasoning_nanousd + charge.draft_nanousd,
            charge.per_request_nanousd,
            charge.per_image_nanousd,
            charge.per_second_nanousd,
            charge.per_character_nanousd,
            -charge.waived_nanousd,
        )
    )
    return [
        (TokenClass.INPUT, usage.prompt_tokens - usage.cached_tokens, amounts[0]),
        (TokenClass.CACHED_INPUT, usage.cached_tokens, amounts[1]),
        (TokenClass.OUTPUT, usage.completion_tokens, amounts[2]),
        (TokenClass.REQUESTS, (units.requests or 0) if amounts[3] else 0, amounts[3]),
        (TokenClass.IMAGES, units.images or 0, amounts[4]),
        (TokenClass.AUDIO, units.audio_ms or 0, amounts[5]),
        (TokenClass.CHARACTERS, units.characters or 0, amounts[6]),
        (TokenClass.WAIVED, 0, amounts[7]),
    ]


def focus_csv(uses: Iterable[DailyUse], names: Mapping[str, str], provider: str) -> Iterator[bytes]:
    """A header and a row a use. `names` are of tenants and projects by id."""
    yield _csv_line(focus_columns)
    for use in uses:
        yield _csv_line(_focus_row(use, names, provider))


def cloud_events(settlements: Iterable[Settlement]) -> Iterator[bytes]:
    """A line of JSON a request."""
    encoder = msgspec.json.Encoder()
    for settlement in settlements:
        amount = settlement.amount_nanousd
        yield (
            encoder.encode(
                {
                    "specversion": "1.0",
                    "id": settlement.request_id,
                    "source": event_source,
                    "type": event_type,
                    "subject": settlement.tenant_id,
                    "time": datetime.datetime.fromtimestamp(settlement.settle_time, datetime.UTC),
                    "datacontenttype": "application/json",
                    "data": {
                        "tenant_id": settlement.tenant_id,
                        "project_id": settlement.project_id,
                        "key_id": settlement.key_id,
                        "model": settlement.model,
                        "outcome": settlement.outcome,
                        "source": settlement.source,
                        **msgspec.structs.asdict(settlement.usage),
                        "images": settlement.units.images,
                        "audio_ms": settlement.units.audio_ms,
                        "characters": settlement.units.characters,
                        "amount_nanousd": amount,
                        "amount_usd": None if amount is None else format_usd(amount),
                    },
                }
            )
            + b"\n"
        )


def _focus_row(use: DailyUse, names: Mapping[str, str], provider: str) -> list[str]:
    month = use.day.replace(day=1)
    next_month = (month + datetime.timedelta(days=32)).replace(day=1)
    cost = format_usd(use.amount_nanousd)
    quantity, unit, what = quantity_of(use)
    is_waived = use.token_class is TokenClass.WAIVED
    return [
        use.tenant_id,
        names.get(use.tenant_id, use.tenant_id),
        "USD",
        _midnight(month),
        _midnight(next_month),
        _midnight(use.day),
        _midnight(use.day + datetime.timedelta(days=1)),
        "Credit" if is_waived else "Usage",
        "",
        f"{what} of {use.model}",
        "Usage-Based",
        cost,
        cost,
        cost,
        cost,
        "" if is_waived else quantity,
        "" if is_waived else unit,
        "" if is_waived else quantity,
        "" if is_waived else unit,
        "" if is_waived else "Standard",
        provider,
        provider,
        provider,
        "AI and Machine Learning",
        "Model inference",
        f"{use.model}/{use.token_class}",
        use.project_id,
        names.get(use.project_id, use.project_id),
        use.model,
        msgspec.json.encode({"token_class": use.token_class}).decode(),
    ]


unit_words = {
    TokenClass.REQUESTS: "Requests",
    TokenClass.IMAGES: "Images",
    TokenClass.AUDIO: "Seconds",
    TokenClass.CHARACTERS: "Characters",
}


def quantity_of(use: DailyUse) -> tuple[str, str, str]:
    """How much, of what unit, and that in words."""
    unit = unit_words.get(use.token_class)
    if unit is None:
        return str(use.tokens), "Tokens", f"{use.token_class} tokens"
    whole = use.token_class is not TokenClass.AUDIO
    return str(use.tokens if whole else Decimal(use.tokens) / 1000), unit, use.token_class.value


def _midnight(day: datetime.date) -> str:
    return f"{day.isoformat()}T00:00:00Z"


def _csv_line(values: Iterable[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue().encode()
