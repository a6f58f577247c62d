"""Routes that need no credential, because they give one: how to sign in, and signing in.

They are mounted in the application of strangers and in the whole one, and change no resource but
the accounts that single sign-on keeps.
"""

from typing import Annotated

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, SecretStr

from headrace.base.errors import HeadraceError
from headrace.control.admin.access import for_everyone_signed_in
from headrace.control.admin.context import AdminContext, Context
from headrace.control.admin.credentials import session_duration_s
from headrace.control.admin.guard import session_cookie
from headrace.control.admin.sign_in import password_length_max
from headrace.control.admin.values import RequestBody
from headrace.spec.accounts import User

router = APIRouter()

cookie_path = "/admin/v1"


class SignInMethods(BaseModel):
    """How one can sign in here."""

    password: bool
    single_sign_on: bool
    single_sign_on_path: str | None


class Login(RequestBody):
    """A local account's login and password."""

    login: Annotated[str, Field(min_length=1, max_length=255)]
    password: Annotated[SecretStr, Field(max_length=password_length_max)]


class SessionView(BaseModel):
    """How long a session lasts."""

    expires_in_s: int


@router.get("/auth/methods")
@for_everyone_signed_in
def list_sign_in_methods(context: Context) -> SignInMethods:
    """Say how to sign in."""
    return SignInMethods(
        password=True,
        single_sign_on=context.single_sign_on is not None,
        single_sign_on_path=None
        if context.single_sign_on is None
        else f"{cookie_path}/auth/oidc/start",
    )


@router.post("/auth/login", status_code=201)
@for_everyone_signed_in
def sign_in(body: Login, request: Request, response: Response, context: Context) -> SessionView:
    """Sign in with a password: set the session's cookie."""
    address = request.client.host if request.client else ""
    try:
        user = context.passwords.user_of(body.login, body.password.get_secret_value(), address)
    except HeadraceError:
        if context.refusals.is_new(body.login, "sign_in"):
            record_sign_in(context, body.login, "", "refused")
        raise
    return open_session(context, user, request, response)


def record_sign_in(context: AdminContext, name: str, user_id: str, outcome: str) -> None:
    """Write who signed in, or tried to, into the audit log."""
    context.database.audit.append(
        record_time=context.clock.wall_s(),
        actor_kind="user" if user_id else "nobody",
        actor_id=user_id,
        actor_name=name,
        action="sign_in",
        outcome=outcome,
    )


def open_session(
    context: AdminContext, user: User, request: Request, response: Response
) -> SessionView:
    """Give a person a session."""
    record_sign_in(context, user.name, user.id, "done")
    set_session_cookie(context.credentials.open_session(user.id), request, response)
    return SessionView(expires_in_s=session_duration_s)


def set_session_cookie(value: str, request: Request, response: Response) -> None:
    """Set the cookie: out of reach of scripts, of other sites and of other paths."""
    response.set_cookie(
        session_cookie,
        value,
        max_age=session_duration_s,
        path=cookie_path,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
