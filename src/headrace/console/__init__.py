"""Web pages for operators, served by the control plane: files only, no logic and no data.

The pages talk to the admin API from the browser like any other client; this package imports
nothing of it. Reading order: `app`, then `static/index.html`, `static/main.js`.
"""

from headrace.console.app import create_console_app

__all__ = ["create_console_app"]
