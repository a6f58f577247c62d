"""`headrace sim`: runs scenarios of simulated fleets; the work is `sim/fleet/command.py`.

The simulator stands above the commands, because it may use all of the product and nothing of the
product may use it. So this module reaches it by name only, when the command was asked for.
"""

import importlib

import typer


def register(app: typer.Typer) -> None:
    """Add the group to the command line."""
    importlib.import_module("headrace.sim.fleet.command").register(app)
