"""From a caller's model name to a reservation: may it, what does it cost, is there room for it."""

from dataclasses import dataclass
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.base.errors import InvalidRequest, NotFound, PermissionDenied
from headrace.gateway.account import Account
from headrace.gateway.admission import GeneratingRequest, TokenBounds, is_tight, token_bounds
from headrace.gateway.asked import Asked
from headrace.gateway.context_room import Context
from headrace.gateway.contexts import ContextLengths
from headrace.gateway.limit_headers import limit_headers, limits_of
from headrace.gateway.prices import quote_for
from headrace.gateway.snapshot import Principal, ServedModel, Snapshot
from headrace.gateway.token_counter import TokenCounter
from headrace.http.asgi import Header
from headrace.ledger.admission import Admission
from headrace.ledger.lease_keeper import LeaseKeeper
from headrace.ledger.limits import Room
from headrace.ledger.meter import Meter
from headrace.ledger.scopes import no_limits, scope_ids
from headrace.spec.prices import PriceVersion
from headrace.spec.priority import Priority

lease_attempts_max = 2  # the second by what the first has told of what is left
output_cap_header = b"x-headrace-max-tokens"  # says what caps an answer that asked for more


@dataclass(frozen=True, slots=True)
class Books:
    """What admitting shares over all requests."""

    meter: Meter
    admission: Admission
    contexts: ContextLengths
    clock: Clock
    counter: TokenCounter | None = None  # of prompts; None: their bytes have to do
    leases: LeaseKeeper | None = None  # of limits that several gateways share
    region: str = ""  # where this gateway is; prices may depend on it


class Admitted(NamedTuple):
    """A request whose worst case is set aside."""

    account: Account
    headers: list[Header]  # of the answer
    output_limit: int | None  # to send to the engine, if we set one


@dataclass(frozen=True, slots=True)
class Turn:
    """One of the models that may answer a request."""

    served: ServedModel
    number: int  # 0: the one that was asked for; n: its n-th fallback
    is_last: bool


class Admitter:
    """Admits one caller's request, by a snapshot."""

    def __init__(
        self, books: Books, principal: Principal, snapshot: Snapshot, priority: Priority
    ) -> None:
        self._books = books
        self._principal = principal
        self._snapshot = snapshot
        self._priority = priority
        self._scope_ids: tuple[str, ...] = ()
        self._limits = no_limits

    def standing_headers(self) -> list[Header]:
        """`x-ratelimit-*` as of now; none where no limit of the minute counts."""
        if self._limits is no_limits:
            return []
        return limit_headers(self._books.admission.standing(self._scope_ids, self._limits))

    def look(self, served: ServedModel | None) -> None:
        """Take the limits of a request that is not to be admitted; None: of no model."""
        principal = self._principal
        name = "" if served is None else served.model.name
        self._limits = limits_of(principal, served)
        self._scope_ids = scope_ids(
            principal.tenant.id, principal.project.id, principal.key.id, name
        )

    def resolve(self, name: str) -> ServedModel:
        """The model of a name; NotFound, or PermissionDenied if the key may not use it."""
        served = self._snapshot.find(name)
        if served is None:
            raise NotFound(
                f"There is no model {name!r}; GET /v1/models lists those of your key.",
                param="model",
            )
        if not self._principal.may_ask(served):
            raise PermissionDenied(
                f"This key may not use the model {name!r}; GET /v1/models lists those it may.",
                param="model",
            )
        return served

    def fallbacks(self, served: ServedModel) -> list[ServedModel]:
        """The models that answer where this one cannot, as far as they are there and allowed."""
        found = (self._snapshot.models.get(name) for name in served.model.fallbacks)
        return [each for each in found if each and self._principal.may_use(each.model.name)]

    async def admit(
        self, request_id: str, asked: Asked, served: ServedModel, key_digest: str | None = None
    ) -> Admitted:
        """Set the worst case aside; raises the refusal. `key_digest` as in `Meter.reserve`."""
        request = asked.request
        books = self._books
        tenant = self._principal.tenant
        priced_as, price, percent = quote_for(
            served, tenant.id, self._priority, books.region, books.clock.wall_s()
        )
        if not asked.tells_units:
            check_length(asked, price)
        bounds, may_be_too_high = self._bounds(request, served, price)
        if may_be_too_high and books.leases is not None:
            floor_nanousd = tenant.credit_floor_nanousd
            if await books.leases.look(self._scope_ids, self._limits, floor_nanousd):
                bounds, may_be_too_high = self._bounds(request, served, price)
        prompt_tokens = None
        if may_be_too_high and books.counter is not None and not asked.images:
            prompt_tokens = await books.counter.count(asked, served)
            if prompt_tokens is not None:
                bounds, _ = self._bounds(request, served, price, prompt_tokens)
        if books.leases is not None:
            for _ in range(lease_attempts_max):
                is_covered = await books.leases.prepare(
                    self._scope_ids,
                    self._limits,
                    price=price,
                    credit_floor_nanousd=tenant.credit_floor_nanousd,
                    prompt_tokens_max=bounds.prompt_tokens_max,
                    output_tokens_max=bounds.output_tokens_max,
                    units_max=asked.units_max,
                )
                if is_covered:
                    break
                # What is left is known by now.
                bounds, _ = self._bounds(request, served, price, prompt_tokens)
        reservation = books.meter.reserve(
            request_id=request_id,
            tenant_id=tenant.id,
            project_id=self._principal.project.id,
            key_id=self._principal.key.id,
            model=priced_as,
            price=price,
            credit_floor_nanousd=tenant.credit_floor_nanousd,
            prompt_tokens_max=bounds.prompt_tokens_max,
            output_tokens_max=bounds.output_tokens_max,
            limits=self._limits,
            price_percent=percent,
            units_max=asked.units_max,
            key_digest=key_digest,
        )
        headers = self.standing_headers()
        limit = bounds.output_limit_sent
        if limit is not None:
            headers.append((output_cap_header, b"%d" % limit))
        account = Account(books.meter, reservation, books.clock, asked.units)
        return Admitted(account, headers, limit)

    def _bounds(
        self,
        request: GeneratingRequest,
        served: ServedModel,
        price: PriceVersion | None,
        prompt_tokens: int | None = None,
    ) -> tuple[TokenBounds, bool]:
        """The most that the request may use, by what credit and limits leave now; whether an exact
        count of its prompt might do better."""
        books, tenant = self._books, self._principal.tenant
        floor_nanousd = tenant.credit_floor_nanousd
        spendable_nanousd = None
        if floor_nanousd is not None:
            spendable_nanousd = books.admission.spendable_nanousd(tenant.id, floor_nanousd)
        room = self._room(served)
        bounds = token_bounds(
            request,
            context=Context(
                served.context_length or books.contexts.longest(served.pools),
                is_checked=served.context_is_checked,
            ),
            price=price,
            spendable_nanousd=spendable_nanousd,
            room=room,
            prompt_tokens=prompt_tokens,
        )
        return bounds, is_tight(bounds, request, price, spendable_nanousd, room)

    def _room(self, served: ServedModel) -> Room:
        """What the limits of the request's scopes leave."""
        self.look(served)
        if self._limits is no_limits:
            return Room()
        return self._books.admission.room(self._scope_ids, self._limits)


def check_length(asked: Asked, price: PriceVersion | None) -> None:
    """InvalidRequest for a sound that is priced by the second, if neither it nor its answer can
    tell how long it is: nobody may choose not to be metered."""
    if price is None or price.price.units is None or asked.units.audio_ms is not None:
        return
    if price.price.units.per_second_nanousd:
        raise InvalidRequest(
            "This model is priced by the second, and such an answer does not tell how long the "
            "sound is; ask for the response_format json or verbose_json without stream, or send a "
            "WAV file.",
            param="response_format",
        )
