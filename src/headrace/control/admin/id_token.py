"""Is this ID token the provider's, for us, for this sign-in and of now? (OpenID Connect 3.1.3.7)

The signature is checked against the provider's published keys and never with a symmetric or absent
algorithm; issuer, audience, authorised party, times, nonce and the access token's hash follow.
"""
# mypy: disable-error-code="import-untyped"
# authlib ships no types; its claims class is used here alone.

from collections.abc import Mapping

import msgspec

from headrace.base.errors import AuthenticationFailed

algorithms = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA")
leeway_s = 60  # between our clock and the provider's


class UnknownKey(AuthenticationFailed):
    """No published key fits; the provider may have changed its keys since they were read."""


def checked_claims(
    token: str,
    key_set: Mapping[str, object],
    *,
    issuer: str,
    client_id: str,
    nonce: str,
    access_token: str,
    wall_s: float,
) -> dict[str, object]:
    """The claims of a token that is right in every respect; AuthenticationFailed for any other.

    Slow the first time, when it loads what only sign-ons need: call it in a thread."""
    from authlib.oidc.core import CodeIDToken  # noqa: PLC0415 -- slow, and only sign-ons need it
    from joserfc import jwt  # noqa: PLC0415 -- as above, and so are the next
    from joserfc.errors import JoseError  # noqa: PLC0415 -- as above
    from joserfc.jwk import KeySet, KeySetSerialization  # noqa: PLC0415 -- as above

    try:
        keys = KeySet.import_key_set(msgspec.convert(key_set, KeySetSerialization))
        decoded = jwt.decode(token, keys, algorithms=list(algorithms))
    except (JoseError, ValueError, TypeError, msgspec.ValidationError) as error:
        raise UnknownKey(
            f"the identity provider's token can't be verified ({type(error).__name__})"
        ) from None
    claims = CodeIDToken(
        decoded.claims,
        decoded.header,
        options={
            "iss": {"essential": True, "value": issuer},
            "aud": {"essential": True, "value": client_id},
            "sub": {"essential": True},
        },
        params={"nonce": nonce, "client_id": client_id, "access_token": access_token},
    )
    try:
        claims.validate(now=int(wall_s), leeway=leeway_s)
    except (JoseError, ValueError, TypeError) as error:
        raise AuthenticationFailed(
            f"the identity provider's token is not for this sign-in ({type(error).__name__})"
        ) from None
    return dict(decoded.claims)
