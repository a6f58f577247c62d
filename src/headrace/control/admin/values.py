"""Money and moments as the API carries them, checked on the way in and exact on the way out."""

import datetime
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from headrace.base.money import format_usd, parse_usd

dollars_max = 1_000_000_000  # keeps every sum of nano-dollars inside 64 bits
moment_first = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
moment_end = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)  # far from where dates overflow


class RequestBody(BaseModel):
    """The base of what callers send: an unknown field is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Money(BaseModel):
    """An amount twice: exact integers for programs, dollars for people."""

    nanousd: int
    usd: str

    @classmethod
    def of(cls, amount_nanousd: int) -> "Money":
        """Both forms of an amount."""
        return cls(nanousd=amount_nanousd, usd=format_usd(amount_nanousd))


def _as_text(amount: object) -> object:
    """A whole number as text; a fraction has to come as text, or digits of it may be lost."""
    match amount:
        case float():
            raise ValueError(f'write amounts in quotes, as "{amount!r}"')
        case int() if not isinstance(amount, bool):
            return str(amount)
    return amount


def _check_dollars(text: str) -> str:
    amount_nanousd = parse_usd(text)
    if abs(amount_nanousd) > parse_usd(str(dollars_max)):
        raise ValueError(f"amounts go up to {dollars_max:,} dollars")
    return text


# A decimal number, as text: "12.50".
Dollars = Annotated[str, BeforeValidator(_as_text), AfterValidator(_check_dollars)]


def _check_moment(when: datetime.datetime) -> datetime.datetime:
    if not moment_first.year <= when.year < moment_end.year:
        raise ValueError(f"moments go from {moment_first.year} up to {moment_end.year}")
    return when


Moment = Annotated[datetime.datetime, AfterValidator(_check_moment)]  # without a zone: in UTC


def moment(wall_s: float) -> datetime.datetime:
    """Epoch seconds as a moment in UTC."""
    return datetime.datetime.fromtimestamp(wall_s, datetime.UTC)


def optional_moment(wall_s: float | None) -> datetime.datetime | None:
    """The same where there may be none."""
    return None if wall_s is None else moment(wall_s)


def wall_s_of(when: datetime.datetime) -> float:
    """A moment as epoch seconds; one without a zone is in UTC."""
    zoned = when if when.tzinfo is not None else when.replace(tzinfo=datetime.UTC)
    return zoned.timestamp()
