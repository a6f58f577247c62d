"""Who sent this request: one answer for every wrong key, whatever is wrong with it.

The key is parsed to its fixed shape before any look-up. An unknown id costs the same digest as a
known one. A key that was found right is recognised by a faster digest under a secret of this
process, as long as the store's digest of it stays the same; state and expiry are looked at each
time, so nothing that a revocation must reach is remembered.
"""

import hashlib
import hmac
import secrets

from headrace.base.errors import AuthenticationFailed, PermissionDenied
from headrace.gateway.snapshot import Principal, Snapshot
from headrace.http.asgi import Scope
from headrace.http.callers import Networks, caller_address
from headrace.spec.api_key_format import ParsedKey, parse_key, secret_matches
from headrace.spec.tenancy import KeyState

key_headers = (b"authorization", b"x-api-key")
no_digest = bytes(32)  # matches no secret
recognised_keys_max = 100_000  # a digest each; beyond it they are all checked anew


class Authenticator:
    """Checks keys against a snapshot."""

    def __init__(self, pepper: bytes, trusted_proxies: Networks = ()) -> None:
        """`trusted_proxies` are believed about whom they forward."""
        self._pepper = pepper
        self._trusted_proxies = trusted_proxies
        self._own_secret = secrets.token_bytes(32)
        self._recognised: dict[str, tuple[bytes, bytes]] = {}  # key id: store's and own digest

    def authenticate(self, scope: Scope, snapshot: Snapshot, wall_s: float) -> Principal:
        """The principal of the request's key.

        AuthenticationFailed if there is no valid key, PermissionDenied if its project or tenant
        is not active, or if the key is not for this endpoint or this caller's address."""
        parsed = parse_key(presented_key(scope))
        if parsed is None:
            raise wrong_key()
        principal = snapshot.principals.get(parsed.key_id)
        if not self._is_right(parsed, principal) or principal is None:
            raise wrong_key()
        if principal.key.state is not KeyState.ACTIVE:
            raise wrong_key()
        if principal.key.expire_time is not None and wall_s >= principal.key.expire_time:
            raise wrong_key()
        if not principal.project.active or not principal.tenant.active:
            raise PermissionDenied("This key's project or tenant is suspended; ask its operator.")
        check_scope(principal, scope, self._trusted_proxies)
        return principal

    def may_be_new(self, scope: Scope) -> bool:
        """Whether the request shows what has the shape of a key, right or wrong."""
        return parse_key(presented_key(scope)) is not None

    def _is_right(self, parsed: ParsedKey, principal: Principal | None) -> bool:
        stored = no_digest if principal is None else principal.key.secret_hmac
        own = hashlib.blake2b(parsed.secret.encode(), digest_size=32, key=self._own_secret).digest()
        known = self._recognised.get(parsed.key_id)
        if known is not None and known[0] == stored and hmac.compare_digest(known[1], own):
            return True
        if not secret_matches(self._pepper, parsed.secret, stored):
            return False
        if len(self._recognised) >= recognised_keys_max:
            self._recognised.clear()
        self._recognised[parsed.key_id] = (stored, own)
        return True


def presented_key(scope: Scope) -> str:
    """The key as OpenAI's or Anthropic's clients send it; AuthenticationFailed if there is none.

    Of two in headers of one name none counts: what stands before this server may have looked at
    the other one."""
    presented: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in key_headers:
            if name in presented:
                raise AuthenticationFailed(f"Send one API key: there are several {name.decode()}.")
            presented[name] = value
    if not presented:
        raise AuthenticationFailed("Send your API key as `Authorization: Bearer hr_...`.")
    bearer = presented.get(b"authorization")
    if bearer is None:
        return presented[b"x-api-key"].decode("latin-1").strip(" \t")
    kind, _, text = bearer.decode("latin-1").partition(" ")
    return text.strip(" \t") if kind.lower() == "bearer" else ""


def check_scope(principal: Principal, scope: Scope, trusted_proxies: Networks) -> None:
    """PermissionDenied if the key is not for this endpoint or not for this caller's address."""
    is_bounded = principal.networks is not None
    if is_bounded and not principal.may_come_from(caller_address(scope, trusted_proxies)):
        raise PermissionDenied("This key may not be used from this network address.")
    if not principal.may_call(scope["path"]):
        allowed = ", ".join(principal.key.endpoints or ())
        raise PermissionDenied(f"This key may not call {scope['path']}; it is for {allowed}.")


def wrong_key() -> AuthenticationFailed:
    """The same words for an unknown, malformed, revoked and expired key."""
    return AuthenticationFailed(
        "This API key is not valid: it is unknown, revoked or expired. Check it, or make a new one."
    )
