"""Passwords of local accounts: how they are hashed, checked, and protected from guessing.

Argon2id with OWASP's smallest parameters, two at a time, so that guesses can't take the machine.
An unknown login costs the same hash as a known one and is answered in the same words. After five
wrong passwords for a login from one address, each further one doubles how long it has to wait.
"""

import functools
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerifyMismatchError
from argon2.low_level import Type

from headrace.base.clock import Clock
from headrace.base.errors import AuthenticationFailed, InvalidRequest, RateLimited
from headrace.spec.accounts import User
from headrace.storage.store import Store

password_length_min = 12
password_length_max = 256
hashes_at_once = 2  # 19 MiB and about 30 ms of a core each
hashes_waiting_max = 10  # those included; more would take the threads that serve everybody else
free_failures = 5
wait_s_max = 900.0
remembered_max = 10_000  # logins and addresses with failures

_hasher = PasswordHasher(time_cost=2, memory_cost=19 * 1024, parallelism=1, type=Type.ID)
_hashing = threading.BoundedSemaphore(hashes_at_once)
_places = threading.BoundedSemaphore(hashes_waiting_max)


@contextmanager
def turn_to_hash() -> Iterator[None]:
    """Wait for one of the turns; RateLimited if too many wait already."""
    if not _places.acquire(blocking=False):
        raise RateLimited("too many sign-ins at once; try again", retry_after_s=1.0)
    try:
        with _hashing:
            yield
    finally:
        _places.release()


def hash_password(password: str) -> str:
    """The text to keep of a password; InvalidRequest if it is too short or too long."""
    if not password_length_min <= len(password) <= password_length_max:
        raise InvalidRequest(
            f"a password has {password_length_min} to {password_length_max} characters",
            param="password",
        )
    with turn_to_hash():
        return _hasher.hash(password)


def password_matches(password_hash: str | None, password: str) -> bool:
    """Whether it is the password; takes as long for an account without one."""
    with turn_to_hash():
        try:
            right = _hasher.verify(password_hash or _hash_of_nothing(), password)
        except (VerifyMismatchError, InvalidHashError):
            return False
    return right and password_hash is not None


@functools.cache
def _hash_of_nothing() -> str:
    return _hasher.hash(secrets.token_hex(32))


class PasswordSignIn:
    """Checks logins and passwords; remembers failures; safe from any thread."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._lock = threading.Lock()
        self._failures: dict[tuple[str, str], tuple[int, float]] = {}  # count, next try allowed

    def user_of(self, login: str, password: str, address: str) -> User:
        """The active person with this login and password.

        AuthenticationFailed for anything wrong, RateLimited after too many failures."""
        key = (login.lower()[:255], address)
        self._check_wait(key)
        user = self._store.find(User, login.lower()) if login else None
        right = password_matches(None if user is None else user.password_hash, password)
        if user is None or not right or not user.active:
            self._count(key)
            raise AuthenticationFailed("the login or the password is wrong")
        with self._lock:
            self._failures.pop(key, None)
        return user

    def _check_wait(self, key: tuple[str, str]) -> None:
        with self._lock:
            _, allowed_s = self._failures.get(key, (0, 0.0))
        wait_s = allowed_s - self._clock.monotonic_s()
        if wait_s > 0:
            raise RateLimited(
                "too many wrong passwords; wait before the next try", retry_after_s=wait_s
            )

    def _count(self, key: tuple[str, str]) -> None:
        with self._lock:
            count = self._failures.pop(key, (0, 0.0))[0] + 1
            if len(self._failures) >= remembered_max:
                del self._failures[next(iter(self._failures))]
            over = count - free_failures
            wait_s = min(wait_s_max, 2.0 ** min(over, 20)) if over >= 0 else 0.0
            self._failures[key] = (count, self._clock.monotonic_s() + wait_s)
