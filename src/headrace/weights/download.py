"""One file over HTTPS into a partial file: resumed, bounded, retried while it makes progress.

have bytes? -> ask for the rest (Range, and If-Range where the server named a validator)
206 from there on -> append      200, or another range -> start over
connection lost -> again, at once if bytes came, else after a pause; give up after tries_max
"""

import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from typing import IO, Protocol
from urllib.parse import urlsplit

from headrace.base.errors import SourceError
from headrace.weights.cache import chunk_bytes, write_failed
from headrace.weights.partial_file import PartialFile
from headrace.weights.progress import Progress
from headrace.weights.reference import check_url

tries_max = 5  # in a row without one new byte
pause_s_first = 0.5
timeout_s = 30.0  # without one byte
file_bytes_max = 1 << 41  # 2 TiB: nothing larger is a model file
user_agent = "headrace"
retried_statuses = frozenset({408, 425, 429, 500, 502, 503, 504})
content_range_pattern = re.compile(r"bytes (\d+)-(\d+)/(\d+)")

Pause = Callable[[float], None]


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects to https only; credentials stay with the host that they were given for."""

    def redirect_request(  # noqa: PLR0917 - the standard library's signature
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        check_url(newurl)
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        credentials = req.unredirected_hdrs.get("Authorization")
        if request and credentials and urlsplit(newurl)[:2] == urlsplit(req.full_url)[:2]:
            request.add_unredirected_header("Authorization", credentials)
        return request


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer by itself."""

    def redirect_request(self, *arguments: object) -> None:
        return None


class _Response(Protocol):
    """What is read of an answer."""

    status: int
    headers: Message

    def read(self, amount: int, /) -> bytes: ...


class _Interrupted(Exception):
    """The network or the server failed in a way that may pass."""


@dataclass(frozen=True, slots=True)
class DownloadTarget:
    """What to fetch."""

    url: str
    label: str  # for progress
    headers: Mapping[str, str]  # credentials; not sent to other hosts on redirects
    digest_is_known: bool  # the result is verified, so that any server may continue it


def download(
    target: DownloadTarget, partial: PartialFile, progress: Progress, *, pause: Pause
) -> None:
    """Fetch the whole file, continuing what `partial` has; SourceError says why it failed.

    Without a digest to verify the result, a continuation must be vouched for by a validator."""
    check_url(target.url)
    fetch = _Fetch(target, partial, progress)
    tries = 0
    while True:
        size_bytes = partial.size_bytes
        try:
            fetch.once()
        except _Interrupted as error:
            tries = 1 if partial.size_bytes > size_bytes else tries + 1
            if tries >= tries_max:
                raise SourceError(
                    f"{_public(target.url)}: {error}; check the network and try again. The "
                    f"{partial.size_bytes} bytes fetched so far are kept."
                ) from error
            pause(pause_s_first * 2 ** (tries - 1))
        else:
            fetch.forget_validator()
            return


def words_of(error: Exception) -> str:
    """What the system says of a connection that failed."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return str(getattr(cause, "strerror", None) or cause)


def probe(url: str, headers: Mapping[str, str]) -> Message:
    """The headers that answer a HEAD request, a redirect's own included; SourceError if refused."""
    check_url(url)
    request = _request(url, headers)
    request.method = "HEAD"
    try:
        with urllib.request.build_opener(_NoRedirects).open(request, timeout=timeout_s) as answer:
            found: Message = answer.headers
            return found
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                return error.headers
            raise _refused(url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(
            f"{_public(url)}: {words_of(error)}; check the network and try again."
        ) from error


def read_whole(url: str, headers: Mapping[str, str], bytes_max: int) -> bytes:
    """A short answer; SourceError if it is refused, or is longer than that."""
    check_url(url)
    opener = urllib.request.build_opener(_SafeRedirects)
    try:
        with opener.open(_request(url, headers), timeout=timeout_s) as answer:
            data: bytes = answer.read(bytes_max + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise _refused(url, error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise SourceError(
            f"{_public(url)}: {words_of(error)}; check the network and try again."
        ) from error
    if len(data) > bytes_max:
        raise SourceError(f"{_public(url)}: the answer has over {bytes_max} bytes.")
    return data


class _Fetch:
    """The state of one download over its tries."""

    def __init__(self, target: DownloadTarget, partial: PartialFile, progress: Progress) -> None:
        self._target = target
        self._url = target.url
        self._partial = partial
        self._progress = progress
        self._validator_path = partial.path.with_name(f"{partial.path.name}.validator")
        self._opener = urllib.request.build_opener(_SafeRedirects)

    def once(self) -> None:
        """One request; _Interrupted if it may be tried again."""
        request = _request(self._url, self._target.headers)
        self._ask_for_rest(request)
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                self._read(response)
        except urllib.error.HTTPError as error:
            with error:
                self._answer_error(error.code)
        except (OSError, http.client.HTTPException) as error:
            raise _Interrupted(f"the connection failed ({words_of(error)})") from error

    def forget_validator(self) -> None:
        """The file is whole."""
        self._validator_path.unlink(missing_ok=True)

    def _ask_for_rest(self, request: urllib.request.Request) -> None:
        validator = self._validator_path.read_text() if self._validator_path.exists() else ""
        if not validator and not self._target.digest_is_known:
            self._partial.restart()
        if self._partial.size_bytes:
            request.add_header("Range", f"bytes={self._partial.size_bytes}-")
            if validator:
                request.add_header("If-Range", validator)

    def _answer_error(self, status: int) -> None:
        if status == 416 and self._partial.size_bytes:
            # What we have is not the beginning of what is there now, or is all of it already.
            self._partial.restart()
            raise _Interrupted("the server does not have the rest of what was fetched before")
        if status in retried_statuses:
            raise _Interrupted(f"the server answered {status}")
        raise _refused(self._url, status)

    def _read(self, response: _Response) -> None:
        total_bytes = self._place(response)
        self._remember_validator(response.headers)
        if total_bytes is not None:
            self._partial.require_space(total_bytes - self._partial.size_bytes)
        self._progress.start(total_bytes, f"fetching {self._target.label}")
        try:
            self._progress.advance(self._partial.size_bytes)
            self._copy(response, total_bytes)
        finally:
            self._progress.finish()

    def _copy(self, response: _Response, total_bytes: int | None) -> None:
        limit_bytes = file_bytes_max if total_bytes is None else total_bytes
        while chunk := response.read(chunk_bytes):
            if self._partial.size_bytes + len(chunk) > limit_bytes:
                self._partial.restart()
                raise SourceError(
                    f"{_public(self._url)}: the server sent more than {limit_bytes} bytes; try "
                    "again or use another source."
                )
            self._partial.append(chunk)
            self._progress.advance(len(chunk))
        if total_bytes is not None and self._partial.size_bytes < total_bytes:
            raise _Interrupted(
                f"the connection ended after {self._partial.size_bytes} of {total_bytes} bytes"
            )

    def _place(self, response: _Response) -> int | None:
        """Make the partial file end where the answer begins; the whole file's size if known."""
        if response.status == 206:
            found = content_range_pattern.fullmatch(response.headers.get("Content-Range", ""))
            if found is None or int(found[1]) != self._partial.size_bytes:
                self._partial.restart()
                raise _Interrupted("the server sent another range than it was asked for")
            return self._bounded(int(found[3]))
        self._partial.restart()
        length = response.headers.get("Content-Length", "")
        return self._bounded(int(length)) if length.isascii() and length.isdigit() else None

    def _bounded(self, total_bytes: int) -> int:
        if total_bytes > file_bytes_max:
            raise SourceError(
                f"{_public(self._url)}: {total_bytes} bytes is no model file; check the address."
            )
        return total_bytes

    def _remember_validator(self, headers: Message) -> None:
        etag = headers.get("ETag", "")
        validator = headers.get("Last-Modified", "") if etag.startswith("W/") else etag
        try:
            self._validator_path.write_text(validator)
        except OSError as error:
            raise write_failed(self._validator_path, error) from error


def _request(url: str, headers: Mapping[str, str]) -> urllib.request.Request:
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked by check_url
        url, headers={"User-Agent": user_agent, "Accept-Encoding": "identity"}
    )
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    return request


def _refused(url: str, status: int) -> SourceError:
    advice = {
        401: "it needs a token (for Hugging Face, set HF_TOKEN)",
        403: "the token in use may not read it, or its licence must be accepted first",
        404: "nothing is there; check the spelling",
    }.get(status, "check the address")
    return SourceError(f"{_public(url)}: the server answered {status}; {advice}.", status=status)


def _public(url: str) -> str:
    """The URL without its query, which may hold a signature, and without a password."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}"
