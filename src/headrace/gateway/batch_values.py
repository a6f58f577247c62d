"""OpenAI's batch as a value, and its input and output lines.

validating ──> in_progress ──> finalizing ──> completed
     │              │ cancel ──> cancelling ──> cancelled
   failed           └ 24 h later ─────────────> expired
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from headrace.base.errors import InvalidRequest

lines_max = 50_000
line_bytes_max = 4 * 1024 * 1024
errors_max = 100  # of an input file, that are told
custom_id_length_max = 512
Status = Literal[
    "validating",
    "in_progress",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
]
ended = frozenset({"completed", "failed", "expired", "cancelled"})


class LineError(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong with a line of the input."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class BatchErrors(msgspec.Struct, frozen=True):
    """Why a batch failed."""

    data: tuple[LineError, ...]
    object: str = "list"


class RequestCounts(msgspec.Struct, frozen=True):
    """How far a batch is."""

    total: int = 0
    completed: int = 0
    failed: int = 0


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as OpenAI's clients know it."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    status: Status
    created_at: int
    expires_at: int
    object: str = "batch"
    errors: BatchErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    metadata: dict[str, str] | None = None


class KeptBatch(msgspec.Struct, frozen=True):
    """A batch and who pays for it."""

    batch: Batch
    key_id: str


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Literal["24h"]
    metadata: dict[str, str] | None = None


class InputLine(msgspec.Struct, frozen=True):
    """One request of an input file."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineResponse(msgspec.Struct, frozen=True):
    """The answer to one request."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class OutputLine(msgspec.Struct, frozen=True):
    """One line of an output or error file."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: None = None


class DoneLine(msgspec.Struct, frozen=True):
    """The part of an output line that tells which request is done."""

    custom_id: str


_line = msgspec.json.Decoder(InputLine)
_done = msgspec.json.Decoder(DoneLine)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class Checked(msgspec.Struct, frozen=True):
    """What a look at a whole input file found."""

    total: int
    errors: tuple[LineError, ...]


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file that are not blank; InvalidRequest for one that is too long."""
    with path.open("rb") as file:
        while line := file.readline(line_bytes_max + 1):
            if len(line) > line_bytes_max:
                raise InvalidRequest(f"A line has more than {line_bytes_max} bytes.")
            if line.strip():
                yield line


def parse_line(line: bytes, endpoint: str) -> InputLine:
    """One request; InvalidRequest says what is wrong with it."""
    try:
        found = _line.decode(line)
        fields = _fields.decode(found.body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The line is no request: {error}.") from None
    for param, value, wanted in (("method", found.method, "POST"), ("url", found.url, endpoint)):
        if value != wanted:
            raise InvalidRequest(
                f"Every line of this batch is a POST to {endpoint}; its {param} is {wanted!r}.",
                param=param,
            )
    if not 0 < len(found.custom_id) <= custom_id_length_max:
        raise InvalidRequest(
            f"A custom_id has 1 to {custom_id_length_max} characters.", param="custom_id"
        )
    if fields.get("stream") == msgspec.Raw(b"true"):
        raise InvalidRequest("Batches do not stream; leave stream out.", param="stream")
    return found


def check_input(path: Path, endpoint: str) -> Checked:
    """Look at every line of an input file."""
    errors: list[LineError] = []
    seen: set[str] = set()
    total = 0
    try:
        for total, line in enumerate(read_lines(path), start=1):
            if total > lines_max:
                raise InvalidRequest(f"A batch has at most {lines_max:,} requests; split it.")
            try:
                custom_id = parse_line(line, endpoint).custom_id
                if custom_id in seen:
                    raise InvalidRequest(f"{custom_id!r} stands twice.", param="custom_id")
                seen.add(custom_id)
            except InvalidRequest as error:
                if len(errors) < errors_max:
                    errors.append(line_error(error, total))
    except InvalidRequest as error:
        errors.append(line_error(error, total))
    if not total:
        errors.append(LineError(code="empty_file", message="The input file has no requests."))
    return Checked(total, tuple(errors))


def line_error(error: InvalidRequest, line: int) -> LineError:
    """What is wrong, for the batch's `errors`."""
    return LineError(code=error.code, message=error.message, line=line, param=error.param)


def done_ids(path: Path) -> set[str]:
    """The requests that an output file has.

    A crash or a full disk may have torn a line, and a power cut left garbage: from there on the
    file is cut, and what stood there is asked again under the same request ids, which are charged
    once."""
    found: set[str] = set()
    if not path.exists():
        return found
    good_bytes = 0
    with path.open("rb+") as file:
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                found.add(_done.decode(line).custom_id)
            except (msgspec.DecodeError, UnicodeDecodeError):
                break
            good_bytes += len(line)
        file.truncate(good_bytes)
    return found
