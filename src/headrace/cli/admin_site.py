"""What the control plane's port serves: the admin API under /admin/, the console elsewhere.

Neither knows the other. The split by path gives nothing away: the admin API authenticates all that
reaches it, and the console holds no data.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

admin_path_prefix = "/admin/"


def create_admin_site(admin_app: ASGIApp, console_app: ASGIApp) -> ASGIApp:
    """Join both applications on one port."""

    async def site(scope: Scope, receive: Receive, send: Send) -> None:
        is_page = scope["type"] == "http" and not scope["path"].startswith(admin_path_prefix)
        await (console_app if is_page else admin_app)(scope, receive, send)

    return site
