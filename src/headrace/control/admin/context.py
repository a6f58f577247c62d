"""What every admin route works with, handed to it by FastAPI."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from headrace.base.clock import Clock
from headrace.control.admin.credentials import AdminCredentials
from headrace.storage.database import Database


@dataclass(frozen=True, slots=True)
class AdminContext:
    """The store and ledger behind the API, and what is needed to make keys and ids."""

    database: Database
    credentials: AdminCredentials
    pepper: bytes
    clock: Clock
    gateway_url: str | None = None


async def admin_context(request: Request) -> AdminContext:
    """The context of the application that serves this request."""
    context = request.app.state.context
    if not isinstance(context, AdminContext):
        raise TypeError("the application was not made by create_admin_app")
    return context


Context = Annotated[AdminContext, Depends(admin_context)]
