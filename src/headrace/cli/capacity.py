"""`headrace capacity`: how many devices a traffic needs; the work is in the simulator.

The simulator stands above the commands; see `cli/sim.py`.
"""

import importlib

import typer


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    importlib.import_module("headrace.sim.fleet.capacity_command").register(app)
