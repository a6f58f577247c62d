"""Routes by which the console signs in and out: the admin token becomes a cookie, once.

The token travels in the Authorization header of the one sign-in request, so the guard checks it
like any other; scripts in the page can't read the cookie that stands for it from then on.
"""

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from headrace.control.admin.context import Context
from headrace.control.admin.credentials import session_duration_s
from headrace.control.admin.guard import session_cookie

router = APIRouter()

cookie_path = "/admin/v1"


class SessionView(BaseModel):
    """How long a session lasts."""

    expires_in_s: int


@router.post("/session", status_code=201)
def open_session(request: Request, response: Response, context: Context) -> SessionView:
    """Sign in: set the session's cookie."""
    response.set_cookie(
        session_cookie,
        context.credentials.open_session(),
        max_age=session_duration_s,
        path=cookie_path,
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return SessionView(expires_in_s=session_duration_s)


@router.delete("/session", status_code=204)
def close_session(request: Request, response: Response, context: Context) -> None:
    """Sign out: the cookie is worth nothing from now on."""
    context.credentials.close_session(request.cookies.get(session_cookie, ""))
    response.delete_cookie(session_cookie, path=cookie_path, httponly=True, samesite="strict")
