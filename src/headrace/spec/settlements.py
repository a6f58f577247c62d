"""What one request used and cost: the immutable facts that a ledger keeps and a bill adds up.

They live below `ledger` (which makes them) and `storage` (which keeps them), so that both agree.
"""

from enum import StrEnum

import msgspec


class Outcome(StrEnum):
    """How an admitted request ended."""

    FINISHED = "finished"  # the client got the whole answer
    ABORTED = "aborted"  # the client or a deadline cut it short
    FAILED = "failed"  # the platform or the engine broke it
    REJECTED = "rejected"  # the engine refused what the caller sent; nothing was used


# Who bears what the platform does on its own account, as a second try beside one that ran: nobody
# is billed for it, no limit counts it, and reconciliation finds it.
platform_tenant_id = "platform"

# The sums of a day count these apart; what is left of the requests was rejected.
summed_outcomes = (Outcome.FINISHED, Outcome.ABORTED, Outcome.FAILED)


class UsageSource(StrEnum):
    """Who counted the tokens."""

    ENGINE = "engine"  # the engine said so, exactly
    COUNTED = "counted"  # the gateway counted what passed
    RECOVERED = "recovered"  # the last checkpoint before a crash
    UNMETERED = "unmetered"  # nobody: there is nothing to rate it by, which is not the same as 0


class TokenUsage(msgspec.Struct, frozen=True):
    """Tokens of one request, by class. The optional ones are None where nobody counted them.

    `cached_tokens`, `embedding_tokens` and `image_tokens` are part of `prompt_tokens`,
    `reasoning_tokens` of `completion_tokens`; draft tokens that were refused are part of none."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int | None = None
    draft_tokens: int | None = None  # proposed by a smaller model and not kept
    embedding_tokens: int | None = None
    image_tokens: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cached_tokens <= self.prompt_tokens or self.completion_tokens < 0:
            raise ValueError(
                "token counts must satisfy 0 <= cached <= prompt and 0 <= completion; got "
                f"prompt {self.prompt_tokens}, cached {self.cached_tokens}, "
                f"completion {self.completion_tokens}"
            )
        if (
            self.reasoning_tokens is self.draft_tokens is None
            and self.embedding_tokens is self.image_tokens is None
        ):
            return  # nearly always, and this is made several times a request
        bounds = (
            ("reasoning", self.reasoning_tokens, self.completion_tokens),
            ("draft", self.draft_tokens, None),
            ("embedding", self.embedding_tokens, self.prompt_tokens),
            ("image", self.image_tokens, self.prompt_tokens),
        )
        for name, count, most in bounds:
            if count is not None and not 0 <= count <= (count if most is None else most):
                raise ValueError(f"{name} tokens must be 0 to {most}; got {count}")

    def at_most(self, limit: int) -> "TokenUsage":
        """The same with every count cut to `limit`."""
        if max(self.prompt_tokens, self.completion_tokens, self.draft_tokens or 0) <= limit:
            return self  # the other counts are parts of these
        counts: dict[str, int | None] = msgspec.structs.asdict(self)
        cut = {name: n if n is None else min(n, limit) for name, n in counts.items()}
        return msgspec.structs.replace(self, **cut)


class UnitCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one request used that is not counted in tokens. None: it used some, nobody knows how
    many; that is not 0."""

    requests: int | None = 0  # 1, unless nothing was done
    images: int | None = 0  # that were made
    audio_ms: int | None = 0  # of the sound that was listened to
    characters: int | None = 0  # that were read aloud

    def __post_init__(self) -> None:
        for count in self.counts():
            if count is not None and not 0 <= count <= unit_count_max:
                raise ValueError(f"a count of units is 0 to {unit_count_max}; got {count}")

    def counts(self) -> tuple[int | None, ...]:
        """The counts in the order of the fields."""
        return (self.requests, self.images, self.audio_ms, self.characters)


unit_count_max = 1_000_000_000
unit_names = UnitCounts.__struct_fields__
no_units = UnitCounts()
one_request = UnitCounts(requests=1)


class Charge(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The lines of one request's price. Their sum less `waived_nanousd` is what is owed."""

    input_nanousd: int = 0
    cached_input_nanousd: int = 0
    output_nanousd: int = 0
    waived_nanousd: int = 0  # what the lines come to above the amount set aside at admission
    reasoning_nanousd: int = 0
    draft_nanousd: int = 0
    embedding_nanousd: int = 0
    image_nanousd: int = 0
    per_request_nanousd: int = 0
    per_image_nanousd: int = 0
    per_second_nanousd: int = 0
    per_character_nanousd: int = 0

    def borne(self) -> "Charge":
        """The same, with all of it waived: the platform bears what it came to."""
        return msgspec.structs.replace(
            self, waived_nanousd=self.amount_nanousd + self.waived_nanousd
        )

    @property
    def amount_nanousd(self) -> int:
        """What the tenant owes."""
        return (
            self.input_nanousd
            + self.cached_input_nanousd
            + self.output_nanousd
            + self.reasoning_nanousd
            + self.draft_nanousd
            + self.embedding_nanousd
            + self.image_nanousd
            + self.per_request_nanousd
            + self.per_image_nanousd
            + self.per_second_nanousd
            + self.per_character_nanousd
            - self.waived_nanousd
        )


class KeyUse(msgspec.Struct, frozen=True):
    """One use of an `Idempotency-Key`, which is charged for one answer, whoever gave it."""

    digest: str  # of the key, of whose it is and of what was asked
    begin_time: float  # seconds since the Unix epoch


class Settlement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one admitted request really used and costs; exactly one exists for each."""

    request_id: str
    tenant_id: str
    project_id: str
    key_id: str
    model: str  # the logical model's name
    usage: TokenUsage
    outcome: Outcome
    source: UsageSource
    price_book_id: str | None  # None: the model had no price, so the request waits to be rated
    charge: Charge | None  # None exactly when `price_book_id` is None; never a silent 0
    settle_time: float  # seconds since the Unix epoch
    replica_id: str | None = None  # which engine counted; None: none had it, or nobody knows
    price_percent: int = 100  # of the book's prices; 50 is the batch class
    units: UnitCounts = one_request
    key_use: KeyUse | None = None  # None: its caller sent no key
    is_borne: bool = False  # by the platform: its charge is waived, now or when it gets a price

    def __post_init__(self) -> None:
        if (self.price_book_id is None) != (self.charge is None):
            raise ValueError("a settlement has a charge exactly when it has a price book")

    @property
    def amount_nanousd(self) -> int | None:
        """What the tenant owes; None when it is not rated yet."""
        return None if self.charge is None else self.charge.amount_nanousd

    def borne(self) -> "Settlement":
        """The same at the platform's expense."""
        charge = None if self.charge is None else self.charge.borne()
        return msgspec.structs.replace(self, charge=charge, is_borne=True)
