"""What engines wrote, for operators, wherever their launcher keeps it."""

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.control.admin.app import create_admin_app
from headrace.launchers.protocol import LaunchSpec
from headrace.sim.clock import ManualClock
from headrace.sim.launcher import FakeLauncher
from headrace.spec.deployments import Replica, Upstream
from headrace.storage import Database

replica = Replica(id="rep_00000000000000000000000001", name="small-0", create_time=0.0)


@pytest.fixture
def operator(database: Database, clock: ManualClock, admin_token: str) -> TestClient:
    launcher = FakeLauncher()
    launcher.start(LaunchSpec(replica.id, ("engine",)))
    launcher.machine.end(replica.id, 1, "out of memory")
    app = create_admin_app(database, admin_token, pepper=b"p" * 32, clock=clock, launcher=launcher)
    return TestClient(
        app,
        base_url="http://127.0.0.1:8081/admin/v1",
        headers={"authorization": f"Bearer {admin_token}"},
    )


def test_the_end_of_an_engines_output_is_shown(operator: TestClient, database: Database) -> None:
    database.store.create(replica)

    answer = operator.get("/replicas/small-0/log")
    assert answer.json() == {"replica": "small-0", "text": "out of memory\n"}
    assert operator.get("/replicas/small-0/log?size=3").json()["text"] == "ry\n"
    assert operator.get("/replicas/other/log").status_code == 404
    assert operator.get("/replicas/small-0/log?size=0").status_code == 400


def test_an_engine_of_others_has_its_output_with_them(
    operator: TestClient, database: Database
) -> None:
    upstream = Upstream(address="https://api.example.com/v1")
    database.store.create(msgspec.structs.replace(replica, upstream=upstream))

    assert operator.get("/replicas/small-0/log").status_code == 409


def test_without_a_launcher_nothing_is_there_to_read(admin: TestClient, database: Database) -> None:
    database.store.create(replica)

    assert admin.get("/replicas/small-0/log").status_code == 503
