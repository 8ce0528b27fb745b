"""Logs are kept on disk, redacted, whatever goes wrong meanwhile."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from nemo_gym.deployment.server_logs import save_logs
from nemo_gym.errors import EngineError, EngineNotFoundError, EngineUnavailableError
from tests.unit.fake_engine import FakeEngine

LABELS = {"nemo-gym.session": "s1"}


def engine_with_logs(**logs: str | Exception) -> FakeEngine:
    """An engine with a server per name, and its log."""
    engine = FakeEngine()
    said = {engine.add(f"c-{name}", {**LABELS, "nemo-gym.server": name}): text for name, text in logs.items()}

    def read_log(container_id: str, tail_lines: int = 60) -> str:
        text = said[container_id]
        if isinstance(text, Exception):
            raise text
        return text

    engine.read_log = read_log  # type: ignore[method-assign]
    return engine


def hide(text: str) -> str:
    return text.replace("sk-1", "***")


def test_one_file_per_server(tmp_path: Path) -> None:
    engine = engine_with_logs(agent="key sk-1\n", policy_model="Grüße\n")
    engine.add("foreign", {"nemo-gym.session": "s2", "nemo-gym.server": "other"})
    folder = save_logs(engine, "s1", tmp_path / "logs", hide)
    assert folder == tmp_path / "logs" / "s1"
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == {
        "agent.log": "key ***\n",
        "policy_model.log": "Grüße\n",
    }


def test_a_name_is_no_way_out_of_the_folder(tmp_path: Path) -> None:
    engine = FakeEngine()
    engine.add("c", {**LABELS, "nemo-gym.server": "../../x"})
    folder = save_logs(engine, "s1", tmp_path / "logs", hide)
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["..-..-x.log"]
    assert [path.name for path in tmp_path.iterdir()] == ["logs"]


def test_nothing_to_keep(tmp_path: Path) -> None:
    assert save_logs(FakeEngine(), "s1", tmp_path / "logs", hide) is None
    assert not (tmp_path / "logs").exists()


def test_one_that_is_gone_does_not_cost_the_others(tmp_path: Path) -> None:
    engine = engine_with_logs(agent=EngineNotFoundError("gone"), verifier="here\n")
    folder = save_logs(engine, "s1", tmp_path, hide)
    assert folder is not None
    assert [path.name for path in folder.iterdir()] == ["verifier.log"]


@pytest.mark.parametrize("error", [EngineError("refused"), EngineUnavailableError("the engine is away")])
def test_an_engine_that_does_not_answer_is_no_error(
    error: Exception, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = FakeEngine(errors={"list_containers": [error]})
    with caplog.at_level(logging.WARNING):
        assert save_logs(engine, "s1", tmp_path / "logs", hide) is None
    assert str(error) in caplog.text


def test_nor_is_a_folder_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with caplog.at_level(logging.WARNING):
        assert save_logs(engine_with_logs(agent="x"), "s1", tmp_path / "file", hide) is None
    assert "could not be kept" in caplog.text
