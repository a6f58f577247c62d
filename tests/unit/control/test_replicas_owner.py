"""How many replicas there are has one owner: the autoscaler where there is one, else the operator.

Who else writes the number, an operator's command or a file that is applied again and again, would
undo what the autoscaler did, and have it undone: two controllers that never agree.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.control.admin import create_admin_app
from headrace.control.scaler import Scaler
from headrace.control.traffic import TrafficBook
from headrace.sim.clock import ManualClock
from headrace.sim.sqlite_copy import open_sqlite_copy
from headrace.spec.deployments import Deployment
from headrace.storage import Database

token = "an-admin-token-of-30-characters"
scaled = {"min": 1, "max": 5, "target_requests": 1.0}


class Platform:
    """An admin API, and the autoscaler beside it."""

    def __init__(self, database: Database, clock: ManualClock) -> None:
        self.store, self.clock = database.store, clock
        app = create_admin_app(database, token, pepper=b"p" * 32, clock=clock)
        self.admin = TestClient(
            app,
            base_url="http://127.0.0.1:8081/admin/v1",
            headers={"authorization": f"Bearer {token}"},
        )
        self.scaler = Scaler(database.store, database.learnt_loads, TrafficBook(), clock)
        self.admin.post("/models", json={"name": "small", "source": "small.gguf"})
        made = self.admin.post("/deployments", json={"model": "small", "autoscaling": scaled})
        assert made.status_code == 201, made.text

    @property
    def deployment(self) -> Deployment:
        (found,) = self.store.list(Deployment)
        return found

    def granted(self, replicas: int) -> None:
        """The autoscaler has set a number."""
        self.store.update(msgspec.structs.replace(self.deployment, replicas=replicas))


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    clock = ManualClock()
    with closing(open_sqlite_copy(tmp_path / "headrace.db", clock)) as database:
        yield Platform(database, clock)


def test_nobody_but_the_autoscaler_changes_a_number_that_it_owns(platform: Platform) -> None:
    platform.granted(4)
    before = platform.deployment
    answer = platform.admin.patch("/deployments/small", json={"replicas": 2})
    assert answer.status_code == 409
    assert "scaled by its traffic, 1 to 5" in answer.json()["error"]["message"]
    assert platform.deployment == before

    exported = platform.admin.get("/manifest").json()
    (document,) = [each for each in exported["documents"] if each["kind"] == "deployment"]
    assert "replicas" not in document["spec"]
    document["spec"] |= {"replicas": 1, "threads": 2}
    applied = platform.admin.post("/manifest", json={"documents": exported["documents"]})
    assert applied.status_code == 200, applied.text
    assert (platform.deployment.replicas, platform.deployment.threads) == (4, 2)


def test_whoever_takes_the_number_over_owns_it(platform: Platform) -> None:
    platform.granted(4)
    fixed = platform.admin.patch("/deployments/small", json={"autoscaling": None, "replicas": 2})
    assert fixed.json()["replicas"] == 2
    for _ in range(3):
        platform.clock.advance(2.0)
        platform.scaler.look()
    assert platform.deployment.replicas == 2
    told = platform.admin.get("/explain/scaling/small")
    assert told.status_code == 404
    assert "a fixed number of replicas, 2" in told.json()["error"]["message"]
    assert platform.admin.patch("/deployments/small", json={"replicas": 3}).status_code == 200

    again = {"autoscaling": scaled, "replicas": 5}
    assert platform.admin.patch("/deployments/small", json=again).json()["replicas"] == 5
    assert platform.admin.patch("/deployments/small", json={"replicas": 1}).status_code == 409
