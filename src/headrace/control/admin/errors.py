"""Operating errors as JSON answers: one shape for every route, OpenAI's, so that clients share it.

{"error": {"message": ..., "type": ..., "param": ..., "code": ..., <fields for programs>}}
"""

import re
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response

from headrace.base.errors import HeadraceError, InvalidRequest
from headrace.control.admin.references import pattern_words
from headrace.protocol.errors import error_body

type_words = {
    "extra_forbidden": "there is no such field here; see its spelling in the admin API's reference",
    "missing": "this field is needed",
    "string_type": "text is expected; put it in quotes",
}
credential_pattern = re.compile(rb"(hr[sn]?_[0-9a-z]{26}_)[0-9A-Za-z]{16,}")


def error_answer(error: HeadraceError) -> Response:
    """The answer that reports `error`."""
    headers = {"cache-control": "no-store"}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    if error.http_status == 401:
        headers["www-authenticate"] = 'Bearer realm="headrace admin"'
    return Response(
        without_credentials(error_body(error)),
        status_code=error.http_status,
        headers=headers,
        media_type="application/json",
    )


def without_credentials(text: bytes) -> bytes:
    """The text with every API key and service token in it cut to its id.

    Whoever puts one in the wrong place, a name or a path, gets an answer that may be logged."""
    return credential_pattern.sub(rb"\1(hidden)", text)


def invalid_request(problems: Sequence[Any]) -> InvalidRequest:
    """One error for pydantic's list of problems. Values are left out: they may be secrets."""
    first = problems[0]
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not JSON: {first['ctx']['error']}")
    lines = []
    for problem in problems:
        path = ".".join(str(part) for part in problem["loc"][1:]) or str(problem["loc"][0])
        lines.append(f"{path}: {words_of(problem)}")
    param = ".".join(str(part) for part in first["loc"][1:])
    return InvalidRequest("; ".join(lines), param=param or None)


def words_of(problem: Any) -> str:
    """What is wrong with one field, and what to write instead where that is known."""
    pattern = problem.get("ctx", {}).get("pattern")
    known = pattern_words.get(pattern) or type_words.get(problem["type"])
    return known or str(problem["msg"]).removeprefix("Value error, ")
