"""The registry: names, metadata, shares, and what is in use stays."""

import hashlib
from pathlib import Path

import msgspec
import pytest
from starlette.testclient import TestClient

from headrace.sim.model_on_disk import write_model_file
from headrace.spec.models import ChatFormat, ModelVersion, VersionFile
from headrace.storage.database import Database


def test_a_chat_template_is_tried_when_it_is_declared(
    admin: TestClient, database: Database
) -> None:
    body = {"name": "turns", "source": "api:ensemble"}
    broken = {**body, "chat_format": {"template": "{% for turn in messages %}"}}
    refused = admin.post("/models", json=broken)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "chat_format"

    good = {"template": "{{ messages[0].content }}{{ eos_token }}", "end_token": "</s>"}
    made = admin.post("/models", json={**body, "chat_format": good})
    assert made.status_code == 201
    (version,) = database.store.list(ModelVersion)
    assert version.chat_format == ChatFormat(good["template"], "</s>")
    (told,) = made.json()["versions"]
    digest = hashlib.sha256(good["template"].encode()).hexdigest()
    assert told["chat_template_sha256"] == digest


@pytest.fixture
def models(admin: TestClient) -> None:
    metadata = {"licence": "Apache-2.0", "quantization": "Q4_K_M", "capabilities": ["tools"]}
    small = {"name": "small", "aliases": ["tiny"], "source": "one.gguf", **metadata}
    assert admin.post("/models", json=small).status_code == 201
    assert admin.post("/models", json={"name": "large", "source": "big"}).status_code == 201
    assert admin.post("/versions", json={"model": "small", "source": "two"}).status_code == 201


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("words", "found"),
    [("", 2), ("small", 1), ("TINY", 1), ("apache tools", 1), ("q4_k_m", 1), ("unheard", 0)],
)
def test_search_finds_names_aliases_and_metadata(admin: TestClient, words: str, found: int) -> None:
    items = admin.get("/models", params={"search": words}).json()["items"]
    assert len(items) == found


@pytest.mark.usefixtures("models")
def test_a_name_belongs_to_one_model(admin: TestClient) -> None:
    clash = {"name": "other", "aliases": ["large"], "source": "x"}
    assert admin.post("/models", json=clash).status_code == 409
    assert admin.post("/models", json={"name": "tiny", "source": "x"}).status_code == 409
    assert admin.patch("/models/large", json={"aliases": ["tiny"]}).status_code == 409
    assert admin.patch("/models/small", json={"aliases": []}).json()["aliases"] == []
    assert admin.patch("/models/large", json={"aliases": ["tiny"]}).status_code == 200


@pytest.mark.usefixtures("models")
def test_shares_of_versions_are_set_by_name(admin: TestClient) -> None:
    shown = admin.patch("/models/small", json={"targets": {"v1": 90, "v2": 10}}).json()
    assert {version["name"]: version["weight"] for version in shown["versions"]} == {
        "v1": 90,
        "v2": 10,
    }
    wrong = admin.patch("/models/small", json={"targets": {"v9": 1}})
    assert wrong.status_code == 404


@pytest.mark.usefixtures("models")
def test_what_is_in_use_is_not_deleted(admin: TestClient) -> None:
    admin.post("/deployments", json={"model": "small", "version": "v2"})
    assert "gets traffic" in admin.delete("/versions/small/v1").json()["error"]["message"]
    used = admin.delete("/versions/small/v2")
    assert (used.status_code, "deployment 'small'" in used.text) == (409, True)
    assert admin.delete("/models/small").status_code == 409
    admin.patch("/models/small", json={"targets": {"v2": 1}})
    assert admin.delete("/versions/small/v1").status_code == 204
    admin.delete("/deployments/small")
    assert admin.delete("/models/small").status_code == 204
    assert admin.get("/versions").json()["items"][0]["model"] == "large"


@pytest.mark.usefixtures("models")
def test_who_brought_a_version_and_from_where_is_kept_after_it_is_gone(admin: TestClient) -> None:
    assert admin.delete("/versions/small/v2").status_code == 204
    records = admin.get("/audit").json()["items"]
    assert [(record["action"], record["detail"].get("source")) for record in records] == [
        ("create_model", "one.gguf"),
        ("create_model", "big"),
        ("create_version", "two"),
        ("delete_version", None),
    ]
    assert {record["actor_id"] for record in records} == {"admin-token"}


@pytest.mark.usefixtures("models")
def test_fallbacks_are_models_in_their_order(admin: TestClient) -> None:
    change = {"fallbacks": ["large"]}
    assert admin.patch("/models/small", json=change).json()["fallbacks"] == ["large"]
    assert admin.patch("/models/small", json={"active": True}).json()["fallbacks"] == ["large"]
    assert admin.patch("/models/small", json={"fallbacks": ["unheard"]}).status_code == 404
    assert admin.patch("/models/small", json={"fallbacks": ["small"]}).status_code == 400
    assert admin.delete("/models/large").status_code == 409
    assert admin.patch("/models/small", json={"fallbacks": []}).json()["fallbacks"] == []


@pytest.mark.usefixtures("models")
def test_objectives_are_set_replaced_and_taken_away(admin: TestClient) -> None:
    shown = admin.patch("/models/small", json={"objectives": {"ttft_s": 0.5}}).json()
    assert shown["objectives"] == {"ttft_s": 0.5, "inter_token_s": None}
    shown = admin.patch("/models/small", json={"objectives": {"inter_token_s": 0.1}}).json()
    assert shown["objectives"] == {"ttft_s": None, "inter_token_s": 0.1}
    assert admin.patch("/models/small", json={"objectives": {"ttft_s": 0}}).status_code == 400
    assert admin.patch("/models/small", json={"objectives": {}}).json()["objectives"] is None


def test_a_version_shows_what_its_file_says(admin: TestClient, tmp_path: Path) -> None:
    path = str(write_model_file(tmp_path / "m.gguf"))
    body = {"name": "own", "source": path, "parameters": 1 << 40}
    (version,) = admin.post("/models", json=body).json()["versions"]
    header = version["header"]
    assert (header["family"], header["format"]) == ("llama", "gguf")
    assert header["context_length"] > 0
    assert version["capabilities"] == header["capabilities"]
    (words,) = version["contradictions"]
    assert "parameters are declared" in words
    assert len(admin.get("/models", params={"search": "llama"}).json()["items"]) == 1


def test_what_a_file_cannot_be_leaves_no_model_behind(admin: TestClient, tmp_path: Path) -> None:
    path = str(write_model_file(tmp_path / "m.gguf"))
    body = {"name": "own", "source": path, "context_length": 1 << 23}
    refused = admin.post("/models", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "context_length")
    assert admin.get("/models").json()["items"] == []


@pytest.mark.usefixtures("models")
def test_a_version_says_who_made_it_and_of_which_files(
    admin: TestClient, database: Database
) -> None:
    version = admin.get("/models/small").json()["versions"][0]
    assert (version["created_by"], version["files"]) == ("admin token", [])

    made = database.store.get(ModelVersion, version["id"])
    files = (VersionFile("config.json", "ab" * 32, 2), VersionFile("w.safetensors", "cd" * 32, 9))
    database.store.update(msgspec.structs.replace(made, files=files))
    shown = admin.get("/models/small").json()["versions"][0]
    assert shown["files"] == [msgspec.to_builtins(file) for file in files]


def test_a_version_of_a_manifest_is_made_by_who_applied_it(admin: TestClient) -> None:
    documents = [
        {"kind": "model", "name": "weir"},
        {"kind": "model_version", "name": "v1", "parent": "weir", "spec": {"source": "x"}},
    ]
    answer = admin.post("/manifest", json={"documents": documents})
    assert answer.status_code == 200, answer.text
    assert admin.get("/models/weir").json()["versions"][0]["created_by"] == "admin token"
    exported = admin.get("/manifest").json()["documents"]
    assert not any("created_by" in document.get("spec", {}) for document in exported)
    again = admin.post("/manifest", json={"documents": exported}).json()
    assert again["changes"] == []
