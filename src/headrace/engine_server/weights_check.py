"""Reads mapped weights once beside the steps, so that what a disk damaged is not served on.

    ready ──▶ reading, chunk by chunk ──all as packed──▶ over
                        └──a checksum is another──▶ the file is removed, this process ends, and the
                                                    next start packs anew from the model file

A load compares no checksums, which would cost it what mapping saves
(docs/decisions/0093-mapped-weights-are-read-again-beside-the-steps.md).
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from headrace.base.clock import Clock, SystemClock
from headrace.engine.runner import CheckedRunner
from headrace.engine_server.messages import EngineConfig
from headrace.weights.packed_cache import remove_packed

chunk_bytes = 16 << 20
niceness = 19  # the thread's, where threads have one: steps go first
damage_text = (
    "the packed weights in the model cache are not what was written there; they are removed, and "
    "the next start packs them anew. If it happens again, check the disk and the memory."
)

lost_page_text = "a page of a mapped file could not be read: packed weights were removed"


def check_weights(runner: CheckedRunner, clock: Clock, pause: Callable[[float], None]) -> bool:
    """Whether the weights are what was packed; reads them to their end, or to the damage.

    Pauses for as long as each chunk took: half of a core, and of what the disk gives, are left."""
    while True:
        start_s = clock.monotonic_s()
        found = runner.check_weights(chunk_bytes)
        if found != "more":
            return found == "sound"
        pause(clock.monotonic_s() - start_s)


def start_check(runner: object, on_damage: Callable[[str], None]) -> None:
    """Check a runner's weights on a thread of its own, if they can be; `on_damage` hears why."""
    if isinstance(runner, CheckedRunner):
        threading.Thread(target=_check, args=(runner, on_damage), daemon=True).start()


def forget_packed(config: EngineConfig) -> bool:
    """Have the next engine pack anew, where a page was not given; whether it maps any."""
    if config.draft_packed_path is not None:
        remove_packed(Path(config.draft_packed_path))
    if config.packed_path is None:
        return False
    remove_packed(Path(config.packed_path), config.tensor_parallel)
    return True


def _check(runner: CheckedRunner, on_damage: Callable[[str], None]) -> None:
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
    if not check_weights(runner, SystemClock(), time.sleep):
        on_damage(damage_text)
