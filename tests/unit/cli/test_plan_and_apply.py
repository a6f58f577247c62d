"""Plans need no platform; files are read as one list of documents."""

import json
from pathlib import Path

import pytest

from headrace.base.errors import ConfigurationError
from headrace.cli.apply import read_documents
from headrace.cli.main import main
from headrace.cli.scaling_options import (
    RolloutOptions,
    ScalingOptions,
    autoscaling_body,
    rollout_body,
    scheduled_bounds,
)
from headrace.cli.version_options import chat_format, targets_body
from headrace.sim.model_on_disk import write_model_file


def succeed(*arguments: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


def test_a_plan_is_told_to_people_and_programs(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["plan", "llama-3.1-70b", "--device", "H100:80GB", "--context", "32768"]
    succeed(*asked, "--concurrency", "64")
    assert "16 x H100: 2 replica(s) of tensor parallel 8" in capsys.readouterr().out
    succeed(*asked, "--concurrency", "64", "--json")
    told = json.loads(capsys.readouterr().out)
    assert (told["devices"], told["kv_bytes_per_token"]) == (16, 327_680)
    assert told["layouts"][0]["devices"] == 16


def test_of_a_model_file_our_engine_is_planned_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_model_file(tmp_path / "weir.gguf")
    succeed("plan", str(path), "--context", "512", "--concurrency", "2", "--json")
    told = json.loads(capsys.readouterr().out)
    assert told["kv_bytes"] == 1024 * 1024  # of 1,024 tokens: a layer of 4 heads of 64, twice
    assert told["total_bytes"] > told["weights_bytes"] + told["kv_bytes"]
    assert told["fits"] == (told["total_bytes"] <= told["available_bytes"])
    succeed("plan", str(path), "--context", "512", "--concurrency", "2")
    assert "1.0 MiB" in capsys.readouterr().out


def test_without_a_device_a_model_must_be_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "llama-3.1-70b"]) == 1
    assert "pass --device" in capsys.readouterr().err


def test_an_unknown_model_names_those_that_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "unheard-of", "--device", "H100"]) == 1
    assert "smollm2-135m" in capsys.readouterr().err


def test_a_chat_template_is_read_as_publishers_write_it(tmp_path: Path) -> None:
    plain = tmp_path / "mine.jinja"
    plain.write_text("{{ messages }}")
    assert chat_format(plain) == {"template": "{{ messages }}"}

    config = tmp_path / "tokenizer_config.json"
    named = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    config.write_text(json.dumps({"chat_template": named, "eos_token": {"content": "</s>"}}))
    assert chat_format(config) == {"template": "yes", "end_token": "</s>"}
    (tmp_path / "chat_template.jinja").write_text("newer")
    assert chat_format(config) == {"template": "newer", "end_token": "</s>"}

    (tmp_path / "chat_template.jinja").unlink()
    for wrong in ("{}", "[]", "{"):
        config.write_text(wrong)
        with pytest.raises(ConfigurationError, match="--chat-template"):
            chat_format(config)


def test_documents_of_files_and_directories_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text("kind: model\nname: two\n---\n---\nkind: model\nname: three\n")
    (tmp_path / "a.json").write_text('[{"kind": "model", "name": "one"}]')
    (tmp_path / "notes.txt").write_text("not read")
    assert read_documents([tmp_path]) == [
        {"kind": "model", "name": name} for name in ("one", "two", "three")
    ]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("kind: [")
    with pytest.raises(ConfigurationError, match=r"wrong\.yaml"):
        read_documents([tmp_path / "wrong.yaml"])
    with pytest.raises(ConfigurationError, match=r"missing\.yaml"):
        read_documents([tmp_path / "missing.yaml"])


def test_options_become_policies() -> None:
    assert autoscaling_body(ScalingOptions()) is None
    assert autoscaling_body(ScalingOptions(max=4, target_ttft=1.5)) == {
        "min": 1,
        "max": 4,
        "target_first_token_s": 1.5,
    }
    with pytest.raises(ConfigurationError, match="--max"):
        autoscaling_body(ScalingOptions(min=1))


def test_other_bounds_at_times_of_the_day_are_written_as_people_say_them() -> None:
    body = autoscaling_body(
        ScalingOptions(max=4, schedule=["mon-fri 08:00-18:00=2-8", "22:00-06:00=0-1"])
    )
    assert body is not None
    assert body["schedule"] == [
        {"begins": "08:00", "ends": "18:00", "min": 2, "max": 8, "weekdays": [0, 1, 2, 3, 4]},
        {"begins": "22:00", "ends": "06:00", "min": 0, "max": 1},
    ]
    assert scheduled_bounds("sat-mon 00:00-23:59=1-1")["weekdays"] == [5, 6, 0]
    assert scheduled_bounds("Sun 00:00-23:59=1-1")["weekdays"] == [6]
    for wrong in ("08:00-18:00", "montag 08:00-18:00=1-2", "xyz 08:00-18:00=1-2", "8-18=1-2"):
        with pytest.raises(ConfigurationError, match="mon-fri 08:00"):
            scheduled_bounds(wrong)
    assert rollout_body(RolloutOptions(canary_step=["10:5", "50"])) == {
        "strategy": "canary",
        "steps": [{"weight": 10, "pause_s": 5.0}, {"weight": 50, "pause_s": 60.0}],
    }
    with pytest.raises(ConfigurationError, match="WEIGHT:SECONDS"):
        rollout_body(RolloutOptions(canary_step=["much"]))
    assert targets_body(["v1=90", "v2=10"]) == {"v1": 90, "v2": 10}
    with pytest.raises(ConfigurationError, match="VERSION=WEIGHT"):
        targets_body(["v1"])
