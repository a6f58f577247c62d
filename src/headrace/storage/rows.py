"""Many rows at once, by the fastest way that each database has."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Table, insert
from sqlalchemy.dialects import postgresql, sqlite

copy_rows_min = 16  # fewer are not worth statements of their own kind

Row = Mapping[str, object]


def insert_many(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Insert rows that have the same columns and are known to be new."""
    if is_worth_copying(connection, rows):
        copy(connection, table.name, rows)
    else:
        connection.execute(insert(table), rows)


def add_many(
    connection: Connection, table: Table, rows: Sequence[Row], summed: Sequence[str]
) -> None:
    """Insert rows; where one with the same key exists, add the `summed` columns to it."""
    if not is_worth_copying(connection, rows):
        statement = dialect_insert(connection, table)
        connection.execute(
            statement.on_conflict_do_update(
                index_elements=list(table.primary_key.columns),
                set_={name: table.c[name] + statement.excluded[name] for name in summed},
            ),
            rows,
        )
        return
    # Names of our own tables and columns; every value goes by COPY.
    name, pending = table.name, f"pending_{table.name}"
    key = ", ".join(column.name for column in table.primary_key.columns)
    sums = ", ".join(f"{column} = {name}.{column} + excluded.{column}" for column in summed)
    columns = ", ".join(rows[0])
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {pending} (LIKE {name}) ON COMMIT DELETE ROWS"
    )
    copy(connection, pending, rows)
    connection.exec_driver_sql(
        f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {pending} ORDER BY {key} "  # noqa: S608 -- see above
        f"ON CONFLICT ({key}) DO UPDATE SET {sums}"
    )
    connection.exec_driver_sql(f"TRUNCATE {pending}")


def is_worth_copying(connection: Connection, rows: Sequence[Row]) -> bool:
    """Whether the rows go by COPY, which only PostgreSQL has."""
    return connection.dialect.name == "postgresql" and len(rows) >= copy_rows_min


def copy(connection: Connection, table_name: str, rows: Sequence[Row]) -> None:
    """Append rows by COPY, which costs a third of an insert for each."""
    columns = ", ".join(rows[0])
    driver = connection.connection.driver_connection
    assert driver is not None
    with (
        driver.cursor() as cursor,
        cursor.copy(f"COPY {table_name} ({columns}) FROM STDIN") as sink,
    ):
        for row in rows:
            sink.write_row(tuple(row.values()))


def dialect_insert(connection: Connection, table: Table) -> sqlite.Insert | postgresql.Insert:
    """An insert that can say what happens on a conflict; both dialects spell it alike."""
    if connection.dialect.name == "postgresql":
        return postgresql.insert(table)
    return sqlite.insert(table)
