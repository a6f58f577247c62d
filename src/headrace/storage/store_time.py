"""The clock that everybody who uses a database shares: its server's, or of a file the machine's."""

from sqlalchemy import Connection

from headrace.base.clock import Clock

query = "SELECT extract(epoch FROM clock_timestamp())::float8"


def store_time_s(connection: Connection, clock: Clock) -> float:
    """Seconds since the Unix epoch; `clock` is this machine's."""
    if connection.dialect.name != "postgresql":
        return clock.wall_s()
    return float(connection.exec_driver_sql(query).scalar_one())
