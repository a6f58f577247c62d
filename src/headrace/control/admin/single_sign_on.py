"""Signing in at an OpenID provider: authorization code with PKCE, state and nonce.

    start     a random state, nonce and code verifier are kept for ten minutes, and the browser that
              asked gets a cookie that binds them to it; then it is sent to the provider
    finish    the state is good once and in that browser alone; the code is exchanged with the
              verifier, the ID token is checked, and its claims say who this is

Where the provider is and what its keys are is read from its discovery document. Requests go through
the egress guard, in which the operator's issuer is an allowed host.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from headrace.base.clock import Clock
from headrace.base.errors import AuthenticationFailed, UpstreamFailed
from headrace.control.admin.id_token import UnknownKey, checked_claims
from headrace.http.egress import Fetcher
from headrace.spec.roles import Role

pending_max = 10_000  # sign-ins that were begun; the oldest goes
pending_s = 600.0
document_s = 3600.0  # how long the provider's documents are believed
keys_reread_s = 60.0  # at the soonest, for a token that no key fits
request_timeout_s = 10.0
answer_bytes_max = 1 << 20

D = TypeVar("D")


class ClaimRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whoever has `value` in the claim gets a role in a tenant, or becomes an operator."""

    value: str
    tenant: str | None = None  # its name
    role: Role | None = None
    operator: bool = False

    def __post_init__(self) -> None:
        if self.operator == (self.tenant is not None) or (self.tenant is None) != (
            self.role is None
        ):
            raise ValueError("a rule gives either `operator`, or a `role` in a `tenant`")


class SingleSignOnSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What an operator says about the provider."""

    issuer: str
    client_id: str
    client_secret: str | None = None  # None: a public client
    redirect_url: str  # this control plane's /admin/v1/auth/oidc/callback, as browsers reach it
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    claim: str = "groups"
    rules: tuple[ClaimRule, ...] = ()


class ProviderDocument(msgspec.Struct, frozen=True):
    """The part of the discovery document that is used."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str | None = None
    token_endpoint_auth_methods_supported: list[str] = msgspec.field(
        default_factory=lambda: ["client_secret_basic"]
    )


class TokenAnswer(msgspec.Struct, frozen=True):
    """What the token endpoint gives for a code."""

    id_token: str
    access_token: str


class Started(NamedTuple):
    """A sign-in that was begun: where to send the browser, and the cookie that binds it."""

    url: str
    binding: str


class Pending(NamedTuple):
    """What is kept of a sign-in until it comes back."""

    binding_digest: bytes
    nonce: str
    verifier: str
    end_s: float


@dataclass(slots=True)
class _Read:
    """A document of the provider, and when it was read."""

    value: object = None
    time_s: float = field(default=float("-inf"))


class SingleSignOn:
    """Sign-ins at one provider; belongs to one event loop."""

    def __init__(self, settings: SingleSignOnSettings, fetcher: Fetcher, clock: Clock) -> None:
        self.settings = settings
        self._fetcher = fetcher
        self._clock = clock
        self._pending: dict[bytes, Pending] = {}
        self._document = _Read()
        self._keys = _Read()
        self._reading = asyncio.Lock()

    async def start(self) -> Started:
        """Begin a sign-in."""
        provider = await self._provider()
        state, nonce, verifier, binding = (secrets.token_urlsafe(32) for _ in range(4))
        now_s = self._clock.monotonic_s()
        for digest in [d for d, pending in self._pending.items() if pending.end_s <= now_s]:
            del self._pending[digest]
        while len(self._pending) >= pending_max:
            del self._pending[next(iter(self._pending))]
        self._pending[_digest(state)] = Pending(
            _digest(binding), nonce, verifier, now_s + pending_s
        )
        query = urlencode(
            {
                "response_type": "code",
                "client_id": self.settings.client_id,
                "redirect_uri": self.settings.redirect_url,
                "scope": " ".join(self.settings.scopes),
                "state": state,
                "nonce": nonce,
                "code_challenge": challenge_of(verifier),
                "code_challenge_method": "S256",
            }
        )
        joint = "&" if urlsplit(provider.authorization_endpoint).query else "?"
        return Started(f"{provider.authorization_endpoint}{joint}{query}", binding)

    async def finish(
        self, *, state: str, code: str, binding: str, issuer: str | None
    ) -> dict[str, object]:
        """The claims of whoever came back; AuthenticationFailed if anything does not fit."""
        pending = self._pending.pop(_digest(state), None)
        if pending is None or pending.end_s <= self._clock.monotonic_s():
            raise AuthenticationFailed("this sign-in is unknown or too old; begin again")
        if not hmac.compare_digest(pending.binding_digest, _digest(binding)):
            raise AuthenticationFailed("this sign-in was begun in another browser; begin again")
        if issuer is not None and issuer != self.settings.issuer:
            raise AuthenticationFailed("another identity provider answered; begin again")
        provider = await self._provider()
        tokens = await self._exchange(provider, code, pending.verifier)
        claims = await self._claims(provider, tokens, pending.nonce)
        if self.settings.claim not in claims and provider.userinfo_endpoint:
            more = await self._userinfo(provider.userinfo_endpoint, tokens.access_token)
            if more.get("sub") != claims.get("sub"):
                raise AuthenticationFailed("the identity provider told of two different people")
            claims = {**more, **claims}
        return claims

    async def _exchange(self, provider: ProviderDocument, code: str, verifier: str) -> TokenAnswer:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self.settings.redirect_url,
            "code_verifier": verifier,
        }
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        secret = self.settings.client_secret
        methods = provider.token_endpoint_auth_methods_supported
        if secret is None:
            form["client_id"] = self.settings.client_id
        elif "client_secret_basic" in methods:
            pair = f"{quote(self.settings.client_id, safe='')}:{quote(secret, safe='')}"
            headers["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        else:
            form |= {"client_id": self.settings.client_id, "client_secret": secret}
        answer = await self._fetcher.fetch(
            "POST",
            provider.token_endpoint,
            headers=headers,
            timeout_s=request_timeout_s,
            limit_bytes=answer_bytes_max,
            body=urlencode(form).encode(),
        )
        if answer.status != 200:
            raise AuthenticationFailed("the identity provider did not accept the code; begin again")
        return _decoded(answer.body, TokenAnswer)

    async def _claims(
        self, provider: ProviderDocument, tokens: TokenAnswer, nonce: str
    ) -> dict[str, object]:
        try:
            keys = await self._key_set(provider, document_s)
            return await asyncio.to_thread(self._check, tokens, nonce, keys)
        except UnknownKey:
            keys = await self._key_set(provider, keys_reread_s)
            return await asyncio.to_thread(self._check, tokens, nonce, keys)

    def _check(
        self, tokens: TokenAnswer, nonce: str, keys: Mapping[str, object]
    ) -> dict[str, object]:
        return checked_claims(
            tokens.id_token,
            keys,
            issuer=self.settings.issuer,
            client_id=self.settings.client_id,
            nonce=nonce,
            access_token=tokens.access_token,
            wall_s=self._clock.wall_s(),
        )

    async def _userinfo(self, url: str, access_token: str) -> dict[str, object]:
        answer = await self._get(url, {"authorization": f"Bearer {access_token}"})
        return _decoded(answer, dict[str, object])

    async def _provider(self) -> ProviderDocument:
        async with self._reading:
            now_s = self._clock.monotonic_s()
            if now_s - self._document.time_s >= document_s:
                url = self.settings.issuer.rstrip("/") + "/.well-known/openid-configuration"
                document = _decoded(await self._get(url, {}), ProviderDocument)
                if document.issuer != self.settings.issuer:
                    raise UpstreamFailed(
                        f"the discovery document at {url} is of another issuer, "
                        f"{document.issuer!r}; correct the setting"
                    )
                self._document = _Read(document, now_s)
        provider = self._document.value
        assert isinstance(provider, ProviderDocument)
        return provider

    async def _key_set(self, provider: ProviderDocument, age_s_max: float) -> dict[str, object]:
        async with self._reading:
            now_s = self._clock.monotonic_s()
            if now_s - self._keys.time_s >= age_s_max:
                read = _decoded(await self._get(provider.jwks_uri, {}), dict[str, object])
                self._keys = _Read(read, now_s)
        keys = self._keys.value
        assert isinstance(keys, dict)
        return keys

    async def _get(self, url: str, headers: Mapping[str, str]) -> bytes:
        answer = await self._fetcher.fetch(
            "GET",
            url,
            headers={"accept": "application/json", **headers},
            timeout_s=request_timeout_s,
            limit_bytes=answer_bytes_max,
        )
        if answer.status != 200:
            raise UpstreamFailed(f"the identity provider answered {answer.status}; try again")
        return answer.body


def challenge_of(verifier: str) -> str:
    """The S256 code challenge of a verifier (RFC 7636, section 4.2)."""
    digest = hashlib.sha256(verifier.encode("ascii")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def values_of(claims: Mapping[str, object], claim: str) -> frozenset[str]:
    """The texts of a claim that is a text, a list of them, or absent."""
    found = claims.get(claim)
    values = found if isinstance(found, list) else [found]
    return frozenset(value for value in values if isinstance(value, str))


def _decoded(body: bytes, kind: type[D]) -> D:
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        raise UpstreamFailed("the identity provider's answer can't be read") from None


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode("utf-8", "surrogateescape")).digest()
