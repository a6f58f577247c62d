"""The admin API: every change of desired state and every question about it, under /admin/v1.

Reading order: `app` (what it is made of), `guard` and `credentials` (who may call), `references`
and `pages` (how things are named and listed), then the routes: `tenancy`, `keys`, `models`,
`deployments`, `billing`.
"""

from headrace.control.admin.app import create_admin_app

__all__ = ["create_admin_app"]
