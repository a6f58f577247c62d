"""The admin API from the command line: where it is, how to ask it, what its errors say.

Plain `http.client`: these commands ask one question and leave, and start in a fraction of the time
that an asynchronous client takes to import.
"""

import http.client
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headrace.base.errors import ConfigurationError, HeadraceError, Unavailable

timeout_s = 30.0
answer_bytes_max = 64 << 20
download_chunk_bytes = 1 << 16
pages_max = 200  # of 500 items; more is a job for the API itself
page_items = 500
start_hint = (
    "start one with `headrace up --demo`, or name a running one with --admin-url and "
    "HEADRACE_ADMIN_TOKEN"
)


class AdminAddress(msgspec.Struct, frozen=True):
    """What `headrace up` writes to run/admin.json."""

    admin_url: str
    token: str


class RemoteError(HeadraceError):
    """The admin API refused; its message is shown as it came."""

    code = "remote_error"


class ErrorDetail(msgspec.Struct, frozen=True):
    """The part of an error answer that people read."""

    message: str


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error answer."""

    error: ErrorDetail


class RawPage(msgspec.Struct, frozen=True):
    """A page of a list, its items not decoded."""

    items: list[msgspec.Raw]
    next: str | None = None


class AdminClient:
    """Asks one control plane; every failure is an error that says what to do."""

    def __init__(self, address: AdminAddress) -> None:
        parts = urlsplit(address.admin_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"--admin-url: {address.admin_url!r} is not an http:// or https:// address"
            )
        self._url = address.admin_url.rstrip("/")
        self._parts = parts
        self._token = address.token

    def get(self, path: str, query: Mapping[str, str | None] | None = None) -> bytes:
        """The JSON at `path`; query values of None are left out."""
        present = {name: value for name, value in (query or {}).items() if value is not None}
        return self._ask("GET", f"{path}?{urlencode(present)}" if present else path)

    def list(self, path: str, query: Mapping[str, str | None] | None = None) -> bytes:
        """Every item of a list as one answer without `next`, whatever the pages.

        What else the pages say is taken from the last."""
        items: list[msgspec.Raw] = []
        after: str | None = None
        for _ in range(pages_max):
            asked = {**(query or {}), "limit": str(page_items), "after": after}
            answer = self.get(path, asked)
            page = msgspec.json.decode(answer, type=RawPage)
            items += page.items
            after = page.next
            if after is None:
                rest = msgspec.json.decode(answer, type=dict[str, msgspec.Raw])
                rest.pop("next", None)
                return msgspec.json.encode({**rest, "items": items})
        raise RemoteError(
            f"{path} has more than {pages_max * page_items:,} items; narrow the question"
        )

    def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, object] | None = None,
        *,
        keep_null: bool = False,
    ) -> bytes:
        """Change something; fields of None are left out, unless they are what is to be said."""
        present = {
            name: value for name, value in (body or {}).items() if keep_null or value is not None
        }
        return self._ask(method, path, msgspec.json.encode(present) if body is not None else None)

    def download(self, path: str, query: Mapping[str, str | None], sink: BinaryIO) -> None:
        """Write what is at `path` to `sink` as it comes, however long it is."""
        present = {name: value for name, value in query.items() if value is not None}
        with self._asked("GET", f"{path}?{urlencode(present)}", None) as answer:
            if answer.status >= 400:
                raise self._refusal(answer.status, answer.read(answer_bytes_max))
            while chunk := answer.read(download_chunk_bytes):
                try:
                    sink.write(chunk)
                except OSError as error:  # of the file, not of the control plane
                    raise ConfigurationError(f"it can't be written: {error.strerror}") from error

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        with self._asked(method, path, body) as answer:
            content = answer.read(answer_bytes_max + 1)
        if len(content) > answer_bytes_max:
            raise RemoteError(f"the answer to {path} is too long; narrow the question")
        if answer.status >= 400:
            raise self._refusal(answer.status, content)
        return content

    @contextmanager
    def _asked(
        self, method: str, path: str, body: bytes | None
    ) -> Iterator[http.client.HTTPResponse]:
        """The answer to one question; Unavailable if none comes or it breaks off."""
        secure = self._parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=timeout_s)
        headers = {"authorization": f"Bearer {self._token}", "accept": "application/json"}
        if body is not None:
            headers["content-type"] = "application/json"
        try:
            connection.request(method, f"{self._parts.path}/admin/v1{path}", body, headers)
            yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                f"the control plane at {self._url} does not answer ({_reason(error)}); {start_hint}"
            ) from error
        finally:
            connection.close()

    def _refusal(self, status: int, content: bytes) -> HeadraceError:
        try:
            message = msgspec.json.decode(content, type=ErrorAnswer).error.message
        except msgspec.DecodeError:
            message = f"{self._url} answered {status} and is no control plane of headrace"
        if status == 401:
            message = (
                f"the control plane at {self._url} does not know this token; `headrace up` writes "
                "the right one to run/admin.json in its data directory at each start"
            )
        return RemoteError(message)


def find_address(url: str | None, token: str | None, data_dir: Path) -> AdminAddress:
    """Where the control plane is: as named, or as the platform in `data_dir` wrote it."""
    if url is not None and token is not None:
        return AdminAddress(url, token)
    path = data_dir / "run" / "admin.json"
    try:
        content = path.read_bytes()
        mode = path.stat().st_mode
    except FileNotFoundError:
        if url is not None:
            raise ConfigurationError(
                "--admin-url needs its token as well: set HEADRACE_ADMIN_TOKEN"
            ) from None
        raise ConfigurationError(f"no platform runs in {data_dir}; {start_hint}") from None
    except OSError as error:
        raise ConfigurationError(f"{path} can't be read: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise ConfigurationError(
            f"{path} holds a secret and is readable by others; `chmod 600` it, and restart the "
            "platform to get a new token"
        )
    try:
        found = msgspec.json.decode(content, type=AdminAddress)
    except msgspec.DecodeError as error:
        raise ConfigurationError(f"{path} is damaged ({error}); restart the platform") from error
    if url is not None and url.rstrip("/") != found.admin_url.rstrip("/"):
        raise ConfigurationError(
            f"--admin-url names another platform than {path}; set HEADRACE_ADMIN_TOKEN for it"
        )
    return AdminAddress(found.admin_url, token or found.token)


def path_of(reference: str, *, keep_slash: bool = False) -> str:
    """A name or id as a part of a path."""
    return quote(reference, safe="/:" if keep_slash else "")


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return f"no answer in {timeout_s:.0f} s"
    return str(error) or type(error).__name__
