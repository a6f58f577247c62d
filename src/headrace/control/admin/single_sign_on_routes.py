"""Routes by which a browser goes to the identity provider and comes back with a session.

The cookie that binds a sign-in to its browser is lax, because the provider sends the browser back
from another site; the session's cookie stays strict.
"""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse

from headrace.base.errors import AuthenticationFailed, NotFound
from headrace.control.admin.access import for_everyone_signed_in
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.sign_in_routes import open_session
from headrace.control.admin.single_sign_on import SingleSignOn, pending_s
from headrace.control.admin.single_sign_on_accounts import account_of

router = APIRouter()

binding_cookie = "headrace_sign_in"
binding_path = "/admin/v1/auth/oidc"
console_path = "/"


class Return(BaseModel):
    """What the provider sends back with the browser."""

    state: Annotated[str, Field(max_length=200)] = ""
    code: Annotated[str, Field(max_length=4096)] = ""
    iss: Annotated[str, Field(max_length=2048)] | None = None
    error: Annotated[str, Field(max_length=200)] | None = None


@router.get("/auth/oidc/start", status_code=302, response_class=RedirectResponse)
@for_everyone_signed_in
async def start_single_sign_on(request: Request, context: Context) -> RedirectResponse:
    """Send the browser to the identity provider."""
    started = await _configured(context).start()
    response = RedirectResponse(started.url, status_code=302)
    response.set_cookie(
        binding_cookie,
        started.binding,
        max_age=int(pending_s),
        path=binding_path,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )
    return response


@router.get("/auth/oidc/callback", status_code=303, response_class=RedirectResponse)
@for_everyone_signed_in
async def finish_single_sign_on(
    request: Request, came_back: Annotated[Return, Query()], context: Context
) -> RedirectResponse:
    """Take the browser back from the identity provider: set the session's cookie."""
    single_sign_on = _configured(context)
    if came_back.error is not None or not came_back.code:
        raise AuthenticationFailed("the identity provider did not let you sign in; begin again")
    claims = await single_sign_on.finish(
        state=came_back.state,
        code=came_back.code,
        binding=request.cookies.get(binding_cookie, ""),
        issuer=came_back.iss,
    )
    user = await asyncio.to_thread(account_of, claims, single_sign_on.settings, context)
    response = RedirectResponse(console_path, status_code=303)
    await asyncio.to_thread(open_session, context, user, request, response)
    response.delete_cookie(binding_cookie, path=binding_path, httponly=True, samesite="lax")
    return response


def _configured(context: AdminContext) -> SingleSignOn:
    if context.single_sign_on is None:
        raise NotFound("single sign-on is not set up here; sign in with a password")
    return context.single_sign_on
