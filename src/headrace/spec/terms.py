"""What a tenant has agreed to beyond the price list: discounts, free tokens, a monthly minimum."""

from collections.abc import Mapping

import msgspec

from headrace.spec.resource import Resource

share_ppm_max = 1_000_000  # parts per million: all of the amount


class VolumeStep(msgspec.Struct, frozen=True):
    """A discount on the part of a month's amount that is above a bound."""

    over_nanousd: int
    discount_ppm: int  # parts per million, in place of those of lower steps

    def __post_init__(self) -> None:
        if self.over_nanousd < 0 or not 0 <= self.discount_ppm <= share_ppm_max:
            raise ValueError(f"a volume step is over 0 or more, and takes 0 to {share_ppm_max} ppm")


class Terms(Resource, frozen=True, kw_only=True, tag="terms"):
    """Terms of the tenant `parent_id`, or of everybody who has none of its own.

    They count when an invoice is drawn, after each request was charged by the price list: first the
    free tokens, then the discount on all, then the volume's, then what is missing of the minimum.
    Those that are by the month count on invoices of whole calendar months."""

    kind = "terms"
    id_prefix = "trm"

    discount_ppm: int = 0  # of everything
    free_tokens: Mapping[str, int] = {}  # of a month, by model, at the month's mean price
    volume: tuple[VolumeStep, ...] = ()  # the lowest bound first
    minimum_nanousd: int = 0  # a month, net of discounts

    def __post_init__(self) -> None:
        if not 0 <= self.discount_ppm <= share_ppm_max:
            raise ValueError(f"a discount is 0 to {share_ppm_max} parts per million")
        if self.minimum_nanousd < 0 or any(count < 0 for count in self.free_tokens.values()):
            raise ValueError("free tokens and the minimum are 0 or more")
        bounds = [step.over_nanousd for step in self.volume]
        if bounds != sorted(set(bounds)):
            raise ValueError("volume steps begin at growing amounts")
