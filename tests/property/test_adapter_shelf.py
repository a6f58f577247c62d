"""Adapters come, go and are replaced while requests use them: nobody's content ever changes."""

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from hypothesis.strategies import DataObject, booleans, data, integers, sampled_from

from headrace.base.errors import Conflict, NotFound
from headrace.engine.request import Adapter
from headrace.engine_server.adapter_shelf import AdapterShelf
from headrace.engine_server.messages import EngineConfig, LoadAdapter
from headrace.sim.adapter_files import write_adapter
from headrace.sim.runner import FakeModel, FakeRunner
from headrace.sim.tiny_model import tiny_spec
from headrace.weights.lora.opening import open_adapter

slot_count = 3
names = ("a", "b", "c", "d")


class AdapterShelfMachine(RuleBasedStateMachine):
    """A shelf beside a model of it: what each name means, and what each live request began with."""

    @initialize()
    def start(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="headrace-"))
        self.paths = [
            write_adapter(self.directory / str(seed), tiny_spec, seed=seed) for seed in range(3)
        ]
        self.digests = [open_adapter(path, tiny_spec, 64).digest for path in self.paths]
        self.runner = FakeRunner(FakeModel(), adapters_max=slot_count)
        config = EngineConfig(
            "",
            kv_tokens=0,
            sequences_max=0,
            step_rows=0,
            waiting_max=0,
            cache_namespace="",
            adapters_max=slot_count,
        )
        self.shelf = AdapterShelf(self.runner, config, lambda _detail, _progress: None)
        self.named: dict[str, str] = {}  # name: digest
        self.live: list[Adapter] = []

    def teardown(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    @rule(name=sampled_from(names), number=integers(0, 2), replaces=booleans())
    def load(self, name: str, number: int, replaces: bool) -> None:
        held = len(self.runner.adapters)
        wanted = LoadAdapter("", name, str(self.paths[number]), replaces)
        try:
            self.shelf.load(wanted)
        except Conflict:
            assert held == slot_count or (name in self.named and not replaces)
        else:
            self.named[name] = self.digests[number]

    @rule(name=sampled_from(names))
    def unload(self, name: str) -> None:
        try:
            self.shelf.unload(name)
        except NotFound:
            assert name not in self.named
        else:
            del self.named[name]

    @rule(name=sampled_from(names))
    def submit(self, name: str) -> None:
        with self.shelf.lock:
            if name in self.named:
                found = self.shelf.find(name)
                assert found is not None
                assert found.version == self.named[name]
                self.live.append(found)

    @precondition(lambda self: self.live)
    @rule(choice=data())
    def end(self, choice: DataObject) -> None:
        self.live.pop(choice.draw(integers(0, len(self.live) - 1)))

    @rule()
    def free(self) -> None:
        in_use = {adapter.slot for adapter in self.live}
        self.shelf.free_unused(lambda: in_use)
        kept = {self.runner.adapters[slot].digest for slot in self.runner.adapters}
        assert len(self.runner.adapters) <= len(self.named) + len(in_use)
        assert kept <= {*self.named.values(), *(adapter.version for adapter in self.live)}

    @invariant()
    def requests_keep_what_they_began_with(self) -> None:
        for adapter in getattr(self, "live", ()):
            assert self.runner.adapters[adapter.slot].digest == adapter.version

    @invariant()
    def names_mean_what_was_loaded_last(self) -> None:
        if hasattr(self, "named"):
            loaded = {facts.name: facts.version for facts in self.shelf.loaded()}
            assert loaded == self.named


AdapterShelfMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None
)
TestAdapterShelf = AdapterShelfMachine.TestCase
