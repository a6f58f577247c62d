"""A settlement that waits for a price may get it, once; everything else of it stays for ever."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

refusal = "the ledger is append-only"
rated_columns = {
    "price_book_id",
    "amount_nanousd",
    "input_nanousd",
    "cached_input_nanousd",
    "output_nanousd",
    "waived_nanousd",
    "reasoning_nanousd",
    "draft_nanousd",
    "embedding_nanousd",
    "image_nanousd",
}


def upgrade() -> None:
    """Let the trigger on settlements pass the one change, from no price to a price."""
    bind = op.get_bind()
    columns = [column["name"] for column in sa.inspect(bind).get_columns("settlements")]
    if bind.dialect.name == "sqlite":
        same = " AND ".join(f"NEW.{name} IS OLD.{name}" for name in kept(columns))
        op.execute("DROP TRIGGER settlements_no_update")
        op.execute(
            "CREATE TRIGGER settlements_no_update BEFORE UPDATE ON settlements WHEN NOT "
            f"(OLD.price_book_id IS NULL AND NEW.price_book_id IS NOT NULL AND {same}) "
            f"BEGIN SELECT RAISE(ABORT, '{refusal}'); END"
        )
        return
    same = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in kept(columns))
    op.execute("DROP TRIGGER settlements_no_change ON settlements")
    op.execute(
        "CREATE FUNCTION refuse_settlement_change() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF OLD.price_book_id IS NULL AND NEW.price_book_id IS NOT NULL AND {same} "
        f"THEN RETURN NEW; END IF; RAISE EXCEPTION '{refusal}'; END $$"
    )
    op.execute(
        "CREATE TRIGGER settlements_rated_once BEFORE UPDATE ON settlements "
        "FOR EACH ROW EXECUTE FUNCTION refuse_settlement_change()"
    )
    op.execute(
        "CREATE TRIGGER settlements_no_change BEFORE DELETE OR TRUNCATE ON settlements "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_ledger_change()"
    )


def kept(columns: list[str]) -> list[str]:
    """The columns that no rating touches."""
    return [name for name in columns if name not in rated_columns]
