"""Files that a server's settings name travel with its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.deployment.first_lines import first_line
from nemo_gym.deployment.server_files import load_server_files
from nemo_gym.deployment.topology import Topology, build_topology
from nemo_gym.errors import ConfigError
from nemo_gym.servers.messages import Bootstrap


def topology(files: Any) -> Topology:
    settings = {"entrypoint": "app.py", "files": files}
    return build_topology({"policy_model": {"responses_api_models": {"replay_model": settings}}})


def test_a_server_is_told_what_its_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.jsonl").write_text('{"a": "ä"}\n\n{"b": 2}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    served = topology({"recordings": "x.jsonl", "unset": None})
    files = load_server_files(served)
    assert files == {"policy_model": {"recordings": '{"a": "ä"}\n\n{"b": 2}\n'}}
    line = first_line(
        served, "policy_model", {}, session_id="s", session_secret="x", token=None, files=files["policy_model"]
    )
    assert line.count(b"\n") == 1
    told = Bootstrap.from_line(line)
    assert told.files == files["policy_model"]
    assert "files" not in told.config["policy_model"]["responses_api_models"]["replay_model"]


@pytest.mark.parametrize("files", [None, {}])
def test_a_server_without_files_is_told_of_none(files: Any) -> None:
    served = topology(files)
    assert load_server_files(served) == {}
    line = first_line(served, "policy_model", {}, session_id="s", session_secret="x", token=None)
    assert json.loads(line)["files"] == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'policy_model' needs the file files\.recordings, and /no/x\.jsonl .*No such"
    ):
        load_server_files(topology({"recordings": "/no/x.jsonl"}))
    (tmp_path / "latin").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no UTF-8 text"):
        load_server_files(topology({"recordings": str(tmp_path / "latin")}))
    with pytest.raises(ConfigError, match=r"must map names to paths; found \['x'\]"):
        load_server_files(topology(["x"]))


def test_a_server_written_elsewhere_may_call_a_setting_so() -> None:
    settings = {"entrypoint": "app.py", "files": {"x": "/no/file"}, "container": {"config_from": "environment"}}
    config = {"policy_model": {"responses_api_models": {"own": settings}}}
    assert load_server_files(build_topology(config)) == {}
