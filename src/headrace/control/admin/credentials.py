"""Who may call the admin API: the bearer of the admin token, or a console session made with it.

A session is a random value in a cookie; the table holds its digest and its expiry, so that signing
out ends it at once and a dump of memory holds no usable cookie.
"""

import hashlib
import hmac
import secrets
import threading

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError

session_duration_s = 12 * 3600  # a working day
sessions_max = 64  # people, not programs; the oldest goes when one more signs in
token_length_min = 20  # over 100 random bits in base 32 or denser


class AdminCredentials:
    """The admin token's digest and the console sessions; safe to use from several threads."""

    def __init__(self, token: str, clock: Clock) -> None:
        if len(token) < token_length_min:
            raise ConfigurationError(
                f"the admin token has {len(token)} characters; it needs {token_length_min} or more"
            )
        self._token_digest = _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._expiry_s: dict[bytes, float] = {}  # by digest of the cookie, oldest first

    def token_matches(self, presented: str) -> bool:
        """Whether it is the admin token; takes the same time either way."""
        return hmac.compare_digest(_digest(presented), self._token_digest)

    def open_session(self) -> str:
        """Make a session; the value is for the cookie and kept nowhere else."""
        value = secrets.token_urlsafe(32)
        now_s = self._clock.monotonic_s()
        with self._lock:
            for digest in [key for key, expiry_s in self._expiry_s.items() if expiry_s <= now_s]:
                del self._expiry_s[digest]
            while len(self._expiry_s) >= sessions_max:
                del self._expiry_s[next(iter(self._expiry_s))]
            self._expiry_s[_digest(value)] = now_s + session_duration_s
        return value

    def session_matches(self, presented: str) -> bool:
        """Whether it is an open session's cookie. Digests are looked up, so timing tells nothing
        about the values."""
        with self._lock:
            expiry_s = self._expiry_s.get(_digest(presented), 0.0)
        return self._clock.monotonic_s() < expiry_s

    def close_session(self, presented: str) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._expiry_s.pop(_digest(presented), None)


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
