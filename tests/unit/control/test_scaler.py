"""The scaler writes what the rule says, from what gateways said."""

from pathlib import Path

from headrace.control.scaler import Scaler, added
from headrace.control.traffic import TrafficBook
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.autoscaling import Autoscaling
from headrace.spec.deployments import Deployment
from headrace.spec.models import Model
from headrace.spec.signals import GatewaySignals, GenerationSignals, ModelSignals


def signals(
    gateway: str, *, tokens: int = 0, waiting: int = 0, in_flight: int = 0
) -> GatewaySignals:
    return GatewaySignals(
        gateway_id=gateway,
        generations=(
            GenerationSignals(deployment_id="dep_1", generation=1, in_flight_requests=in_flight),
        ),
        models=(
            ModelSignals(
                model="small",
                arrived_requests_total=tokens // 100,
                arrived_tokens_total=tokens,
                waiting_requests=waiting,
            ),
        ),
    )


def test_work_scales_up_within_the_budget_and_a_waiting_request_wakes(tmp_path: Path) -> None:
    clock = ManualClock()
    database = open_sqlite_copy(tmp_path / "h.db", clock)
    store = database.store
    store.create(Model(id="mod_1", name="small", create_time=0))
    store.create(
        Deployment(
            id="dep_1",
            name="small",
            parent_id="mod_1",
            create_time=0,
            model_version_id="ver_1",
            replicas=0,
            autoscaling=Autoscaling(min=0, max=8, target_tokens_per_s=100.0, idle_s=30.0),
        )
    )
    book = TrafficBook()
    scaler = Scaler(store, database.learnt_loads, book, clock, devices=3)

    def look(heard: GatewaySignals) -> int:
        clock.advance(2.0)
        book.hear(heard, clock.monotonic_s())
        scaler.look()
        return store.get(Deployment, "dep_1").replicas

    try:
        assert look(signals("a")) == 0
        assert look(signals("a", waiting=1)) == 1
        assert look(signals("a", tokens=1000, in_flight=2)) == 3, "five are needed, three there"
        last = scaler.looks["dep_1"]
        assert (last.proposal.replicas, last.granted) == (5, 3)
        scale = store.get(Deployment, "dep_1").scale
        assert scale is not None
        assert "device budget" in scale.reason
        for _ in range(400):
            replicas = look(signals("a", tokens=1000))
        assert replicas == 0
    finally:
        database.close()


def test_totals_survive_restarts_losses_and_repeats() -> None:
    book = TrafficBook()
    for tokens in (100, 300, 300):
        book.hear(signals("a", tokens=tokens), 0.0)
    book.hear(signals("b", tokens=50), 1.0)
    book.hear(signals("a again", tokens=20), 2.0)
    assert book.arrived("small").tokens == 370
    book.hear(signals("b", in_flight=4), 3.0)
    assert book.load("dep_1", 3.0).in_flight_requests == 4
    assert book.load("dep_1", 300.0).in_flight_requests == 0


def test_counts_of_times_are_added_over_gateways_and_compared_look_by_look() -> None:
    book = TrafficBook()

    def told(gateway: str, *counts: int) -> None:
        generation = GenerationSignals(deployment_id="dep_1", generation=1, inter_tokens=counts)
        book.hear(GatewaySignals(gateway_id=gateway, generations=(generation,)), 0.0)

    told("a", 1, 0)
    told("a", 3, 2, 1)  # one that was updated counts finer
    told("b", 0, 5)
    told("b", 0, 5)
    assert book.totals_of("dep_1").inter_tokens == [3, 7, 1]
    assert added([3, 7, 1], [1, 7]) == (2, 0, 1)
