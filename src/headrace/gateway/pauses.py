"""Keeps the interpreter's own pauses short, for a process in which others wait.

Two of them reach a request. A thread that wants the interpreter (the journal's writer has one batch
after another) waits for the one that runs to give it up, 5 ms by default; and a full garbage
collection looks at every object there is, most of which a gateway made when it started.
"""

import gc
import sys

switch_interval_s = 0.0005  # the writer's wait, twice a batch; costs under 1% in switches
young_objects_max = 2_000  # between two collections: half a millisecond; 10,000 took 2 to 5
collections_per_generation = 20


def shorten_pauses() -> None:
    """Call once, when everything that lives as long as the process is there."""
    sys.setswitchinterval(switch_interval_s)
    gc.collect()
    gc.freeze()  # what exists now is never looked at again
    gc.set_threshold(young_objects_max, collections_per_generation, collections_per_generation)
