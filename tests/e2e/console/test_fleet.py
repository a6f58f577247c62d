"""What the console shows of machines, versions, deployments and replicas is what the API tells."""

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from headrace.base.clock import SystemClock
from headrace.base.ids import new_id
from headrace.spec.deployments import Deployment, Replica
from headrace.spec.models import FileHeader, Model, ModelVersion, VersionFile, WeightedTarget
from headrace.spec.nodes import Inventory, Node, NodeDevice, NodeState
from headrace.storage import Database

if TYPE_CHECKING:
    from tests.e2e.console.conftest import ConsolePage, OpenConsole

pytestmark = pytest.mark.e2e

nothing = "\N{EN DASH}"  # how an empty cell is shown


def add_fleet(database: Database) -> None:
    """Two machines, one of them closed, and a version of two files beside the plain one."""
    clock = SystemClock()
    now_s = clock.wall_s()
    (model,) = database.store.list(Model)
    (plain,) = database.store.list(ModelVersion)
    (deployment,) = database.store.list(Deployment)
    (first,) = [each for each in database.store.list(Replica) if each.name == "first"]
    whole = ModelVersion(
        id=new_id("ver", clock),
        name="v2",
        parent_id=model.id,
        create_time=now_s,
        source="hf://owner/model",
        sha256="ab" * 32,
        created_by="mara",
        capabilities=("chat", "vision"),
        context_length=65_536,
        header=FileHeader(family="qwen3", context_length=32_768, capabilities=("completions",)),
        files=(
            VersionFile("config.json", "cd" * 32, 700),
            VersionFile("model.safetensors", "ef" * 32, 5_000_000),
        ),
    )
    database.store.create(whole)
    targets = (WeightedTarget(plain.id, 9), WeightedTarget(whole.id, 1))
    database.store.update(replace(database.store.get(Model, model.id), targets=targets))
    database.store.update(replace(plain, parent_id=model.id))
    devices = [
        NodeDevice(id=f"GPU-{number}", device_type="H100", memory_bytes=80 << 30, island="nvlink0")
        for number in range(2)
    ]
    socket_device = NodeDevice(id="cpu0", device_type="CPU", memory_bytes=256 << 30, is_shared=True)
    for name, closed, held in (("gpu-1", False, (*devices, socket_device)), ("gpu-2", True, ())):
        node = Node(
            id=new_id("nod", clock),
            name=name,
            create_time=now_s,
            state=NodeState.READY,
            region="eu",
            zone="a" if closed else "b",
            labels={"disk": "ssd"},
            is_cordoned=closed,
            inventory=Inventory(
                devices=held, cpu_count=64, memory_bytes=512 << 30, address="10.0.0.7"
            ),
        )
        database.store.create(node)
        if held:
            database.store.update(replace(first, node_id=node.id, device_ids=("GPU-1",)))
    database.store.update(replace(deployment, parent_id=model.id))


def rows_of(page: Page, table: str) -> list[dict[str, str]]:
    """What a table shows, by its columns; white space as one space."""
    found = page.get_by_role("table", name=table, exact=True).evaluate(
        """table => {
          const names = [...table.querySelectorAll("thead th")].map((cell) => cell.textContent);
          return [...table.querySelectorAll("tbody tr")].map((row) => Object.fromEntries(
            [...row.cells].map((cell, index) =>
              [names[index], cell.textContent.replace(/\\s+/g, " ").trim()])));
        }"""
    )
    return [dict(row) for row in found]


def told(console: "ConsolePage", path: str) -> list[dict[str, Any]]:
    """The items that the admin API tells."""
    return list(console.ask("GET", path)["items"])


def test_nodes_deployments_and_versions_are_shown_as_the_api_tells_them(
    open_console: "OpenConsole", console_url: str, database: Database
) -> None:
    add_fleet(database)
    console = open_console(console_url)
    page = console.page
    console.enter()

    console.show("nodes")
    nodes = told(console, "/nodes")
    assert [node["name"] for node in nodes] == ["gpu-1", "gpu-2"]
    for node in nodes:
        card = page.locator("section.card, .card").filter(
            has=page.get_by_role("heading", name=node["name"], exact=True)
        )
        text = " ".join(card.inner_text().split())
        assert f"{node['region']} / {node['zone']}" in text
        for name, value in (
            ("State", " ".join(filter(None, (node["state"], node["closed_reason"])))),
            ("Processors", f"{node['cpu_count']:.0f}"),
            ("Memory", f"{node['memory_bytes'] >> 30} GiB"),
            ("Address", node["address"]),
            ("Labels", ", ".join(f"{name}={label}" for name, label in node["labels"].items())),
        ):
            assert f"{name} {value}" in text
        for device in node["devices"]:
            where = (
                f"island {device['island']}" if device["island"] else f"NUMA node {device['numa']}"
            )
            shown = card.get_by_label(where).get_by_role("listitem").filter(has_text=device["id"])
            assert " ".join(shown.inner_text().split()) == (
                f"{device['type']} {device['id']} {device['memory_bytes'] >> 30} GiB "
                f"{', '.join(device['replicas']) or 'idle'}"
            )

    console.show("models")
    versions = told(console, "/versions")
    weights = sum(version["weight"] for version in versions)
    shown_versions = {row["Version"]: row for row in rows_of(page, "Model versions")}
    assert len(shown_versions) == len(versions) == 2
    for version in versions:
        row = shown_versions[f"{version['model']} @ {version['name']}"]
        files, header = version["files"], version["header"] or {}
        digest = f"{version['sha256'][:12]}…" if version["sha256"] else nothing
        assert row["Source"] == version["source"]
        assert row["SHA-256"] == digest + (f" of {len(files)} files" if len(files) > 1 else "")
        assert row["Made by"] == (version["created_by"] or nothing)
        assert row["Family"] == (header.get("family") or nothing)
        words = [", ".join(version["capabilities"]) or nothing, *version["contradictions"]]
        assert row["Abilities"] == " ".join(words)
        context = version["context_length"] or header.get("context_length")
        assert row["Context"] == (f"{context:,}" if context else "the file's")
        assert row["Share"] == f"{version['weight'] / weights:.0%}"
        title = page.locator(f'[title*="{version["sha256"]}"]') if version["sha256"] else None
        for file in files:
            assert title is not None
            assert f"{file['sha256']}  {file['name']}" in (title.get_attribute("title") or "")
    assert any(version["contradictions"] for version in versions)

    console.show("deployments")
    (deployment,) = told(console, "/deployments")
    (row,) = rows_of(page, "Deployments")
    assert row["Deployment"] == deployment["name"]
    assert row["Model"] == f"{deployment['model']} @ {deployment['version']}"
    assert row["Engine"] == deployment["engine"]
    assert row["Ready"] == str(deployment["ready_replicas"])
    assert row["Wanted"] == f"\N{MINUS SIGN}{deployment['replicas']}+"
    assert row["State"] == "".join(("degraded", *deployment["reasons"]))

    console.show("replicas")
    shown_replicas = {row["Replica"]: row for row in rows_of(page, "Replicas")}
    for replica in told(console, "/replicas"):
        row = shown_replicas[replica["name"]]
        assert row["Deployment"] == replica["deployment"]
        assert row["State"] == replica["state"]
        assert row["Node"] == (replica["node"] or nothing)
        assert row["Address"] == replica["address"].removeprefix("http://")
        assert row["Launches"] == str(replica["attempts"])
        assert row["Detail"] == (replica["detail"] or nothing)
    assert shown_replicas["first"]["Node"] == "gpu-1"
    console.leave()
