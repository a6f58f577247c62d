"""The platform over a real Ray cluster of two nodes: scaled, read, hurt, healed."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headrace.sim.child_process import wait_until
from headrace.sim.platform_process import PlatformProcess
from headrace.spec.deployments import ReplicaState

pytestmark = [pytest.mark.e2e, pytest.mark.filterwarnings("ignore::ResourceWarning")]

model = "smollm2-135m-instruct"
command = (sys.executable, "-m", "headrace.cli.main")
words: list[Any] = [{"role": "user", "content": "Say hello."}]


class Site:
    """A platform whose replicas are actors: one has room on the head, two on the other node."""

    def __init__(self, cluster: Any, node: Any, platform: PlatformProcess) -> None:
        self.cluster, self.node, self.platform = cluster, node, platform
        self._client = openai.OpenAI(
            base_url=f"{platform.gateway_url}/v1", api_key=platform.api_key, timeout=120
        )

    def run(self, *arguments: str) -> str:
        answer = subprocess.run(
            [*command, *arguments, "--data-dir", str(self.platform.data_dir)],
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def scale(self, count: int) -> None:
        self.run("deployments", "scale", model, str(count))
        self.platform.wait_active(count)

    def ask(self) -> str:
        answer = self._client.chat.completions.create(
            model=model, messages=words, max_tokens=4, temperature=0
        )
        return answer.choices[0].message.content or ""

    def places(self) -> list[str]:
        """The node of each replica that the cluster has room set aside for."""
        import ray  # noqa: PLC0415 -- an extra

        groups = ray.util.placement_group_table().values()
        nodes = [group["bundles_to_node_id"][0] for group in groups if group["state"] == "CREATED"]
        return sorted(nodes)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if importlib.util.find_spec("ray") is None:  # loading it would fix its settings
        pytest.skip("Ray is not installed: pip install 'headrace[ray]'")
    from headrace.sim.ray_cluster import add_node, ray_cluster  # noqa: PLC0415 -- an extra

    directory: Path = tmp_path_factory.mktemp("ray")
    with ray_cluster(cpu_count=1) as cluster, pytest.MonkeyPatch.context() as patch:
        node = add_node(cluster)
        patch.setenv("HEADRACE_LAUNCHER", "ray")
        patch.setenv("HEADRACE_RAY_ADDRESS", cluster.address)
        with PlatformProcess.start(directory, "--demo") as platform:
            site = Site(cluster, node, platform)
            yield site
            site.scale(0)


@pytest.mark.timeout(600)
def test_replicas_are_scaled_over_nodes_and_their_logs_are_read(site: Site) -> None:
    site.platform.wait_active(1)
    first = site.ask()
    assert first

    site.scale(3)
    assert len(set(site.places())) == 2
    for replica in site.platform.replicas():
        log = site.run("replicas", "logs", replica.name)
        assert str(replica.address).removeprefix("http://") in log
    assert {site.ask() for _ in range(6)} == {first}


@pytest.mark.timeout(600)
def test_what_ran_on_a_lost_node_is_made_anew_once_there_is_room(site: Site) -> None:
    from headrace.sim.ray_cluster import add_node  # noqa: PLC0415 -- an extra

    site.scale(3)
    before = site.ask()
    site.cluster.remove_node(site.node)
    wait_until(lambda: len(active(site)) == 1)
    assert site.ask() == before

    site.node = add_node(site.cluster)
    site.platform.wait_active(3)
    assert len(set(site.places())) == 2
    assert {site.ask() for _ in range(6)} == {before}

    site.scale(1)
    wait_until(lambda: len(site.places()) == 1)  # the others' room is given back
    assert site.ask() == before


def active(site: Site) -> list[str]:
    return [one.id for one in site.platform.replicas() if one.state is ReplicaState.ACTIVE]
