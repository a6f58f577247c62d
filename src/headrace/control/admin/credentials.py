"""What callers of the admin API present, and who that makes them.

    Authorization: Bearer <admin token>      the platform's operator
    Authorization: Bearer hrs_<id>_<secret>  a service account
    a session's cookie                       a person, or the operator's console

A session is a random value in a cookie; the table holds its digest, whose it is and its expiry, so
that signing out ends it at once and a dump of memory holds no usable cookie. A person is looked up
anew for each request: one that was deactivated is out at once.
"""

import hashlib
import hmac
import secrets
import threading
from collections.abc import Callable
from typing import NamedTuple

from headrace.base.clock import Clock
from headrace.base.errors import ConfigurationError, NotFound
from headrace.control.admin.actors import Actor, token_actor
from headrace.spec.accounts import Member, ServiceAccount, User
from headrace.spec.token_format import service_tokens
from headrace.storage.store import Store

session_duration_s = 12 * 3600  # a working day
sessions_max = 64  # of one person, or of the token; the oldest goes when one more is opened
people_max = 10_000  # with open sessions
token_length_min = 20  # over 100 random bits in base 32 or denser
no_digest = bytes(32)  # matches no secret


class Session(NamedTuple):
    """An open session."""

    subject_id: str  # a user's id, or the token actor's
    expiry_s: float


class AdminCredentials:
    """The admin token's digest and the open sessions; safe to use from several threads."""

    def __init__(self, token: str, clock: Clock) -> None:
        if len(token) < token_length_min:
            raise ConfigurationError(
                f"the admin token has {len(token)} characters; it needs {token_length_min} or more"
            )
        self._token_digest = _digest(token)
        self._clock = clock
        self._lock = threading.Lock()
        self._sessions: dict[bytes, Session] = {}  # by digest of the cookie, oldest first

    def token_matches(self, presented: str) -> bool:
        """Whether it is the admin token; takes the same time either way."""
        return hmac.compare_digest(_digest(presented), self._token_digest)

    def open_session(self, subject_id: str = token_actor.id) -> str:
        """Make a session; the value is for the cookie and kept nowhere else."""
        value = secrets.token_urlsafe(32)
        now_s = self._clock.monotonic_s()
        with self._lock:
            self._forget(lambda session: session.expiry_s <= now_s)
            own = [d for d, session in self._sessions.items() if session.subject_id == subject_id]
            for digest in own[: max(0, len(own) - sessions_max + 1)]:
                del self._sessions[digest]
            while len(self._sessions) >= people_max:
                del self._sessions[next(iter(self._sessions))]
            self._sessions[_digest(value)] = Session(subject_id, now_s + session_duration_s)
        return value

    def subject_of_session(self, presented: str) -> str | None:
        """Whose open session this cookie is, or None. Digests are looked up, so timing tells
        nothing about the values."""
        with self._lock:
            session = self._sessions.get(_digest(presented))
        if session is None or session.expiry_s <= self._clock.monotonic_s():
            return None
        return session.subject_id

    def close_session(self, presented: str) -> None:
        """End a session, if it is one."""
        with self._lock:
            self._sessions.pop(_digest(presented), None)

    def close_sessions_of(self, subject_id: str) -> None:
        """End every session of a person: the password changed, or the account was closed."""
        with self._lock:
            self._forget(lambda session: session.subject_id == subject_id)

    def _forget(self, unwanted: Callable[[Session], bool]) -> None:
        for digest in [d for d, session in self._sessions.items() if unwanted(session)]:
            del self._sessions[digest]


class ActorReader:
    """Turns a session's subject or a service account's token into an actor, from the store."""

    def __init__(self, store: Store, pepper: bytes, clock: Clock) -> None:
        self._store = store
        self._pepper = pepper
        self._clock = clock

    def of_subject(self, subject_id: str) -> Actor | None:
        """The actor of a session; None for a person who is gone or inactive."""
        if subject_id == token_actor.id:
            return token_actor
        try:
            user = self._store.get(User, subject_id)
        except NotFound:
            return None
        if not user.active:
            return None
        members = [member for member in self._store.list(Member) if member.name == user.id]
        return Actor(
            kind="user",
            id=user.id,
            name=user.name,
            is_operator=user.is_operator,
            grants={member.parent_id: member.scope for member in members},
        )

    def of_service_token(self, presented: str) -> Actor | None:
        """The actor of a service account's token; None for any other text.

        An unknown account costs the same digest as a known one."""
        parsed = service_tokens.parse(presented)
        if parsed is None:
            return None
        try:
            account = self._store.get(ServiceAccount, parsed.owner_id)
        except NotFound:
            account = None
        stored = no_digest if account is None else account.secret_hmac
        if not service_tokens.matches(self._pepper, parsed.secret, stored) or account is None:
            return None
        expired = account.expire_time is not None and account.expire_time <= self._clock.wall_s()
        if not account.active or expired:
            return None
        return Actor(
            kind="service_account",
            id=account.id,
            name=account.name,
            grants={account.parent_id: account.scope},
        )


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
