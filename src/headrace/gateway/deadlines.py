"""How long a caller is ready to wait for a whole answer: the header `x-request-timeout`."""

import math

from headrace.base.errors import InvalidRequest
from headrace.http.asgi import Scope, header

header_name = b"x-request-timeout"
deadline_s_max = 86_400.0


def deadline_of(scope: Scope) -> float | None:
    """The seconds from now, or None if the caller sets no limit; InvalidRequest for nonsense."""
    text = header(scope, header_name)
    if text is None:
        return None
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = math.nan
    if not 0 < deadline_s <= deadline_s_max:
        raise InvalidRequest(
            f"X-Request-Timeout is a number of seconds above 0 and up to {deadline_s_max:.0f}.",
            param="X-Request-Timeout",
        )
    return deadline_s
