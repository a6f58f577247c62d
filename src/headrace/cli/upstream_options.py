"""Where a deployment's engine is, when others run it, on the command line."""

from dataclasses import dataclass
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    """An engine that is reached at an address; not given: as it was."""

    address: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Use an engine that others run, by its base URL; start none."
        ),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(
            "--address-key",
            metavar="REFERENCE",
            help="Where its key is kept: env:NAME or file:/path, of gateways and control plane.",
        ),
    ] = None
    bills_abandoned: Annotated[
        bool | None,
        typer.Option(
            "--bills-abandoned/--ends-abandoned",
            help="It bills a whole answer although the caller left, so read it to its end; or it "
            "ends with its connection. Default: as its kind of engine does.",
        ),
    ] = None


def upstream_body(options: UpstreamOptions) -> dict[str, object] | None:
    """The options as the admin API takes them; None if there are none."""
    body: dict[str, object] = {}
    if options.address is not None:
        body["address"] = options.address
    if options.key is not None:
        body["key"] = options.key
    if options.bills_abandoned is not None:
        body["bills_abandoned"] = options.bills_abandoned
    return body or None
