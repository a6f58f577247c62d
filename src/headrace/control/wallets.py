"""Wallets: credit granted to tenants, how much of each grant is left, what expires.

A grant is booked at once as credit. When it expires, what is left of it by `billing.burn_down` is
booked back, once, under an entry named after the grant; a restart or a second control plane finds
the entry and books nothing.
"""

import math
from collections.abc import Sequence

import msgspec

from headrace.base.clock import Clock
from headrace.billing.burn_down import has_expired, left_of
from headrace.spec.grants import Grant
from headrace.spec.tenancy import Tenant
from headrace.storage.database import Database


class Wallets:
    """Grants credit, and takes back what expires; synchronous, safe from any thread."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    def grant(self, grant: Grant) -> Grant:
        """Keep a grant and book its credit, together or not at all."""
        with self._database.transaction():
            created = self._database.store.create(grant)
            self._database.ledger.credit(
                grant.parent_id, grant.amount_nanousd, grant.id, grant.reason or "grant"
            )
        return created

    def left(self, tenant: Tenant) -> list[tuple[Grant, int]]:
        """A tenant's grants in order of creation, and the nano-dollars that are left of each."""
        grants = self._database.store.list(Grant, tenant.id)
        now_s = self._clock.wall_s()
        left = self._left_of(tenant.id, grants, math.nextafter(now_s, math.inf))  # now included
        return [(grant, 0 if has_expired(grant, now_s) else left[grant.id]) for grant in grants]

    def expire(self) -> int:
        """Take back what is left of grants that are over; how many those were."""
        now_s = self._clock.wall_s()
        due = [
            grant
            for grant in self._database.store.list(Grant)
            if has_expired(grant, now_s) and grant.expired_nanousd is None
        ]
        for grant in due:
            self._expire_one(grant)
        return len(due)

    def _expire_one(self, grant: Grant) -> None:
        assert grant.expire_time is not None
        grants = self._database.store.list(Grant, grant.parent_id)
        left = self._left_of(grant.parent_id, grants, grant.expire_time)[grant.id]
        with self._database.transaction():
            self._database.store.update(msgspec.structs.replace(grant, expired_nanousd=left))
            if left:
                self._database.ledger.credit(
                    grant.parent_id, -left, f"expiry-{grant.id}", f"grant {grant.name} expired"
                )

    def _left_of(self, tenant_id: str, grants: Sequence[Grant], until_s: float) -> dict[str, int]:
        def used(since_s: float, until_s: float) -> int:
            return self._database.ledger.spent(tenant_id, since_s, until_s)

        return left_of(grants, used, until_s)
