"""The LoRA adapters of one engine process: which are loaded under what names, in which slots.

    free ──load──▶ named ──unload, or replaced──▶ retired ──last request ended──▶ free

A request names an adapter once, when it is submitted; from then on it has the slot. So a name may
be given to other content while requests of the former run. `lock` guards names and slots, and is
held from the look-up of a name until the request that asked for it is in the engine.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from headrace.base.errors import Conflict, HeadraceError, InvalidRequest, NotFound, SetupError
from headrace.engine.request import Adapter
from headrace.engine.runner import AdapterRunner, ModelRunner
from headrace.engine_server.messages import (
    AdapterCall,
    Done,
    EngineConfig,
    FromEngine,
    LoadAdapter,
    LoadedAdapter,
    rejection,
)
from headrace.weights.lora.adapter import LoraAdapter
from headrace.weights.lora.opening import open_adapter

load_progress = 0.9  # of the start
slot_patience_s = 0.5  # the step loop frees a slot after the last answer of its adapter was sent
out_of_memory = "There is not enough memory for this adapter; unload another first."


@dataclass(frozen=True, slots=True)
class _Held:
    """An adapter in its slot."""

    slot: int
    facts: LoadedAdapter


class AdapterShelf:
    """Loads and unloads; as many adapters at once as the runner has slots."""

    def __init__(
        self, runner: ModelRunner, config: EngineConfig, report: Callable[[str, float], None]
    ) -> None:
        """Loads what the configuration names; raises what is wrong with one that must be there."""
        self.lock = threading.Lock()
        self._freed = threading.Condition(self.lock)
        self._runner = runner if isinstance(runner, AdapterRunner) else None
        self._slot_count = runner.info.adapters_max if self._runner else 0
        self._rank_max = config.adapter_rank_max
        self._named: dict[str, _Held] = {}
        self._free = list(range(self._slot_count - 1, -1, -1))
        self._retired: set[int] = set()
        for wanted in (*config.adapters, *config.late_adapters):
            report(f"loading the adapter {wanted.name}", load_progress)
            try:
                self.load(wanted)
            except HeadraceError:
                if wanted in config.adapters:
                    raise

    def loaded(self) -> list[LoadedAdapter]:
        """What requests can ask for now."""
        with self.lock:
            return [held.facts for held in self._named.values()]

    def find(self, name: str | None) -> Adapter | None:
        """The adapter that a request names, if any; the caller holds `lock`."""
        if name is None:
            return None
        held = self._named.get(name)
        if held is None:
            raise NotFound(f"The adapter {name!r} is not loaded.", param="model")
        return Adapter(held.slot, held.facts.version)

    def load(self, wanted: LoadAdapter) -> None:
        """Read an adapter and put it into a free slot; blocks while it is read.

        ModelFileError says what is wrong with it, Conflict that its name is taken."""
        if self._runner is None or not self._slot_count:
            raise InvalidRequest(
                "This server was started without room for adapters; start it with --max-loras."
            )
        with self.lock:
            if wanted.name in self._named and not wanted.replaces:
                raise Conflict(
                    f"An adapter {wanted.name!r} is loaded; unload it first, or ask to load in "
                    "place.",
                    param="lora_name",
                )
            if not self._free:
                self._refuse_full()
            slot = self._free.pop()
        try:
            adapter = open_adapter(Path(wanted.path), self._runner.spec, self._rank_max)
            self._runner.load_adapter(slot, adapter)
        except BaseException:
            with self.lock:
                self._free.append(slot)
            raise
        with self.lock:
            self._retire(wanted.name)
            self._named[wanted.name] = _Held(slot, _facts(wanted, adapter))

    def unload(self, name: str) -> None:
        """Forget a name; its slot is free once no request uses it."""
        with self.lock:
            if name not in self._named:
                raise NotFound(f"The adapter {name!r} is not loaded.", param="lora_name")
            self._retire(name)

    def start(self, call: AdapterCall, send: Callable[[FromEngine], None]) -> None:
        """Carry a call out in a thread of its own, and answer it."""
        threading.Thread(target=self._carry_out, args=(call, send), daemon=True).start()

    def free_unused(self, find_in_use: Callable[[], set[int]]) -> None:
        """Free retired slots but those of live requests, which `find_in_use` tells."""
        if not self._retired:
            return
        assert self._runner is not None
        with self.lock:
            in_use = find_in_use()
            for slot in self._retired - in_use:
                self._runner.unload_adapter(slot)
                self._free.append(slot)
            self._retired &= in_use
            self._freed.notify_all()

    def _carry_out(self, call: AdapterCall, send: Callable[[FromEngine], None]) -> None:
        try:
            if isinstance(call, LoadAdapter):
                self._await_slot()
                self.load(call)
            else:
                self.unload(call.name)
        except HeadraceError as error:
            # A file that is wrong is whoever's who named it: nothing is wrong with this server.
            told = InvalidRequest(error.message) if isinstance(error, SetupError) else error
            send(rejection(call.call_id, told))
        except MemoryError:
            send(rejection(call.call_id, Conflict(out_of_memory)))
        else:
            send(Done(call.call_id, self.loaded()))

    def _await_slot(self) -> None:
        """Give the step loop a moment to free what was unloaded, where nothing else is free."""
        with self.lock:
            self._freed.wait_for(lambda: self._free or not self._retired, slot_patience_s)

    def _retire(self, name: str) -> None:
        held = self._named.pop(name, None)
        if held is not None:
            self._retired.add(held.slot)

    def _refuse_full(self) -> NoReturn:
        message = f"{self._slot_count} adapters are loaded, as many as --max-loras allows; "
        if self._retired:
            message += "some are being unloaded when their requests end: try again, or "
        raise Conflict(message + "unload one first.", retry_after_s=1.0 if self._retired else None)


def _facts(wanted: LoadAdapter, adapter: LoraAdapter) -> LoadedAdapter:
    return LoadedAdapter(
        name=wanted.name,
        path=wanted.path,
        version=adapter.digest,
        rank=adapter.rank,
        byte_count=adapter.byte_count,
    )
