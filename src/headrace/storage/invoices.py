"""Invoices at rest, and the sums of the ledger that they are drawn from."""

import builtins
import datetime
from collections.abc import Callable

import msgspec
from sqlalchemy import (
    Connection,
    RowMapping,
    Select,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from headrace.base.errors import Conflict, NotFound
from headrace.spec.invoices import Account, CreditNote, Invoice, RatedUse
from headrace.spec.settlements import Charge, TokenUsage
from headrace.storage.billing_tables import credit_notes, invoices, number_series
from headrace.storage.posting import tenant_account
from headrace.storage.sessions import Sessions
from headrace.storage.tables import entries, postings, settlements, usage_daily

token_fields = TokenUsage.__struct_fields__
charge_fields = Charge.__struct_fields__
unit_columns = ("unit_requests", "images", "audio_ms", "characters")
number_digits = 6


class InvoiceStore:
    """Drafts, numbered invoices and credit notes; synchronous, safe from any thread."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions

    def rated_uses(
        self, first_day: datetime.date, last_day: datetime.date, tenant_id: str | None = None
    ) -> dict[str, list[RatedUse]]:
        """What each tenant used in whole UTC days, by tenant id; one pass over the settlements."""
        query = sums_query(start_s(first_day), start_s(last_day) + day_s)
        if tenant_id is not None:
            query = query.where(settlements.c.tenant_id == tenant_id)
        uses: dict[str, list[RatedUse]] = {}
        with self._sessions.read() as connection:
            for row in connection.execute(query).mappings():
                uses.setdefault(row["tenant_id"], []).append(rated_use(row))
        return uses

    def account(self, tenant_id: str, first_day: datetime.date, last_day: datetime.date) -> Account:
        """A tenant's prepaid account around a period of whole UTC days."""
        with self._sessions.read() as connection:
            before = credits_of(connection, tenant_id, None, start_s(first_day))
            during = credits_of(
                connection, tenant_id, start_s(first_day), start_s(last_day) + day_s
            )
            used = connection.execute(
                select(func.coalesce(func.sum(usage_daily.c.amount_nanousd), 0)).where(
                    usage_daily.c.tenant_id == tenant_id,
                    usage_daily.c.day < first_day.isoformat(),
                )
            ).scalar_one()
        return Account(opening_nanousd=before - int(used), credits_nanousd=during)

    def save_draft(self, invoice: Invoice) -> None:
        """Keep a draft in place of older drafts of the same tenant that have some of its days.

        Conflict if a numbered invoice of the tenant has some of these days."""
        with self._sessions.write() as connection:
            reject_overlap(connection, invoice)
            connection.execute(
                delete(invoices).where(
                    invoices.c.number.is_(None),
                    invoices.c.tenant_id == invoice.tenant_id,
                    invoices.c.first_day <= invoice.last_day,
                    invoices.c.last_day >= invoice.first_day,
                )
            )
            connection.execute(insert(invoices).values(row_of(invoice)))

    def number(self, draft: Invoice, prefix: str, numbered: Callable[[str], Invoice]) -> Invoice:
        """Give a draft the next number of `prefix` and keep what `numbered` makes of it.

        The number is taken in the same transaction, so that none is left out. Conflict if the
        draft is not there any more, or if its days are invoiced already."""
        with self._sessions.write() as connection:
            reject_overlap(connection, draft)
            final = numbered(next_number(connection, prefix))
            result = connection.execute(
                update(invoices)
                .where(invoices.c.id == draft.id, invoices.c.number.is_(None))
                .values(row_of(final))
            )
            if result.rowcount == 0:
                raise Conflict("the draft is not there any more; draw it again", id=draft.id)
        return final

    def add_credit_note(
        self, invoice: Invoice, prefix: str, noted: Callable[[str, int], CreditNote]
    ) -> CreditNote:
        """Give a credit note the next number; `noted` gets it and the net credited before."""
        with self._sessions.write() as connection:
            before = connection.execute(
                select(func.coalesce(func.sum(credit_notes.c.net_nanousd), 0)).where(
                    credit_notes.c.invoice_id == invoice.id
                )
            ).scalar_one()
            note = noted(next_number(connection, prefix), int(before))
            connection.execute(
                insert(credit_notes).values(
                    id=note.id,
                    invoice_id=note.invoice_id,
                    number=note.number,
                    net_nanousd=note.net_nanousd,
                    body=msgspec.json.encode(note),
                )
            )
        return note

    def get(self, reference: str) -> Invoice:
        """The invoice of an id or a number; NotFound if there is none."""
        query = select(invoices.c.body).where(
            (invoices.c.id == reference) | (invoices.c.number == reference)
        )
        with self._sessions.read() as connection:
            body = connection.execute(query).scalar_one_or_none()
        if body is None:
            raise NotFound(f"there is no invoice {reference}", param="invoice")
        return msgspec.json.decode(body, type=Invoice)

    def lock(self, invoice_id: str) -> None:
        """Let nobody else change what is paid of an invoice until this transaction ends."""
        with self._sessions.write() as connection:  # SQLite has one writer anyhow
            connection.execute(
                select(invoices.c.id).where(invoices.c.id == invoice_id).with_for_update()
            )

    def list(
        self,
        tenant_id: str | None = None,
        *,
        month: str = "",
        before: tuple[str, str] | None = None,
        limit: int | None = None,
    ) -> builtins.list[Invoice]:
        """Invoices, the newest period first: of periods that begin in a month (as 2026-11), and
        after the invoice of this first day and id."""
        place = tuple_(invoices.c.first_day, invoices.c.id)
        query = (
            select(invoices.c.body)
            .where(invoices.c.first_day.startswith(month, autoescape=True))
            .order_by(invoices.c.first_day.desc(), invoices.c.id.desc())
            .limit(limit)
        )
        if tenant_id is not None:
            query = query.where(invoices.c.tenant_id == tenant_id)
        if before is not None:
            query = query.where(place < before)
        with self._sessions.read() as connection:
            bodies = connection.execute(query).scalars().all()
        return [msgspec.json.decode(body, type=Invoice) for body in bodies]

    def credit_notes(self, *invoice_ids: str) -> builtins.list[CreditNote]:
        """The credit notes of some invoices in the order of their numbers."""
        query = (
            select(credit_notes.c.body)
            .where(credit_notes.c.invoice_id.in_(invoice_ids))
            .order_by(credit_notes.c.number)
        )
        with self._sessions.read() as connection:
            bodies = connection.execute(query).scalars().all()
        return [msgspec.json.decode(body, type=CreditNote) for body in bodies]

    def credit_note(self, reference: str) -> CreditNote:
        """The credit note of an id or a number; NotFound if there is none."""
        query = select(credit_notes.c.body).where(
            (credit_notes.c.id == reference) | (credit_notes.c.number == reference)
        )
        with self._sessions.read() as connection:
            body = connection.execute(query).scalar_one_or_none()
        if body is None:
            raise NotFound(f"there is no credit note {reference}", param="credit_note")
        return msgspec.json.decode(body, type=CreditNote)


day_s = 86_400.0


def start_s(day: datetime.date) -> float:
    """When a UTC day begins, in seconds since the epoch."""
    return datetime.datetime.combine(day, datetime.time(), datetime.UTC).timestamp()


def sums_query(since_s: float, until_s: float) -> Select[tuple[object, ...]]:
    """Sums of tokens and amounts by tenant, model and price book."""
    keys = (settlements.c.tenant_id, settlements.c.model, settlements.c.price_book_id)
    sums = (*token_fields, *charge_fields, *unit_columns)
    return (
        select(
            *keys,
            func.count().label("requests"),
            *(func.sum(func.coalesce(settlements.c[name], 0)).label(name) for name in sums),
        )
        .where(settlements.c.settle_time >= since_s, settlements.c.settle_time < until_s)
        .group_by(*keys)
        .order_by(*keys)
    )


def rated_use(row: RowMapping) -> RatedUse:
    """One row of the sums."""
    return RatedUse(
        model=row["model"],
        price_book_id=row["price_book_id"],
        requests=int(row["requests"]),
        usage=TokenUsage(**{name: int(row[name]) for name in token_fields}),
        charge=Charge(**{name: int(row[name]) for name in charge_fields}),
        units=(
            int(row["unit_requests"]),
            int(row["images"]),
            int(row["audio_ms"]),
            int(row["characters"]),
        ),
    )


def credits_of(
    connection: Connection, tenant_id: str, since_s: float | None, until_s: float
) -> int:
    """What was credited to a tenant in a span of time, less what was taken back."""
    amount = postings.c.credit_nanousd - postings.c.debit_nanousd
    query = (
        select(func.coalesce(func.sum(amount), 0))
        .select_from(entries.join(postings, postings.c.entry_id == entries.c.id))
        .where(
            entries.c.kind != "settlement",
            entries.c.post_time < until_s,
            postings.c.account_id == tenant_account(tenant_id),
        )
    )
    if since_s is not None:
        query = query.where(entries.c.post_time >= since_s)
    return int(connection.execute(query).scalar_one())


def reject_overlap(connection: Connection, invoice: Invoice) -> None:
    """Refuse days that a numbered invoice has already."""
    number = connection.execute(
        select(invoices.c.number).where(
            invoices.c.tenant_id == invoice.tenant_id,
            invoices.c.number.is_not(None),
            invoices.c.first_day <= invoice.last_day,
            invoices.c.last_day >= invoice.first_day,
        )
    ).scalar()
    if number is not None:
        raise Conflict(
            f"the invoice {number} has some of these days already; choose others, or correct it "
            "with a credit note",
            param="since",
        )


def row_of(invoice: Invoice) -> dict[str, object]:
    """The columns of an invoice."""
    return {
        "id": invoice.id,
        "tenant_id": invoice.tenant_id,
        "first_day": invoice.first_day,
        "last_day": invoice.last_day,
        "number": invoice.number,
        "body": msgspec.json.encode(invoice),
    }


def next_number(connection: Connection, prefix: str) -> str:
    """The next number of a series; given back if the transaction fails."""
    updated = connection.execute(
        update(number_series)
        .where(number_series.c.name == prefix)
        .values(value=number_series.c.value + 1)
        .returning(number_series.c.value)
    ).scalar_one_or_none()
    if updated is None:
        connection.execute(insert(number_series).values(name=prefix, value=1))
        updated = 1
    return f"{prefix}-{updated:0{number_digits}d}"
