"""The record that keeps the next job of a chain from repeating a failed preparation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.environment.benchmarks import BenchmarkConfig, get_benchmark
from nemo_gym.environment.preparation_failure import (
    PreparationFailedError,
    check_stop_record,
    clear_stop_record,
    stop_record_path,
    stop_recorded,
    write_stop_record,
)
from tests.support.made_benchmark import MadeBenchmark, asks, make_benchmark

ERROR = PreparationFailedError("benchmarks.demo.prepare", "prepare", "ValueError: bad row")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MadeBenchmark:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    return make_benchmark(tmp_path, rows=[asks("a")])


def resolved(made: MadeBenchmark, **overrides: Any) -> tuple[dict[str, Any], BenchmarkConfig]:
    config = to_plain(load_config([made.config_file], overrides, serving=False))
    return config, get_benchmark(config)


def test_the_next_job_stops_with_the_same_failure_and_says_how_to_clear_it(made: MadeBenchmark) -> None:
    check_stop_record(*resolved(made))
    path = write_stop_record(ERROR, *resolved(made))
    assert path == Path("results/preparation_failed-demo.json")
    record = json.loads(path.read_text())
    assert {key: record[key] for key in ("kind", "module", "action", "reason", "exit_code")} == {
        "kind": "preparation_failed",
        "module": "benchmarks.demo.prepare",
        "action": "prepare",
        "reason": "ValueError: bad row",
        "exit_code": 76,
    }
    with pytest.raises(PreparationFailedError) as caught:
        check_stop_record(*resolved(made))
    assert caught.value.stop_exit_code == 76
    assert caught.value.reason.startswith(
        "ValueError: bad row\nThis was recorded in results/preparation_failed-demo.json"
    )
    path.unlink()
    check_stop_record(*resolved(made))


def test_the_record_stands_in_the_results_directory_and_goes_with_a_success(
    made: MadeBenchmark, tmp_path: Path
) -> None:
    config, benchmark = resolved(made, results_dir=str(tmp_path / "out"))
    assert write_stop_record(ERROR, config, benchmark) == tmp_path / "out" / "preparation_failed-demo.json"
    clear_stop_record(config, benchmark)
    clear_stop_record(config, benchmark)
    check_stop_record(config, benchmark)


@pytest.mark.parametrize("change", ["script", "arguments", "config", "mirror"])
def test_a_record_is_void_once_something_has_changed(
    made: MadeBenchmark, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_stop_record(ERROR, *resolved(made))
    assert path is not None
    overrides: dict[str, Any] = {}
    if change == "script":
        made.script.write_text(made.script.read_text() + "\n# corrected\n")
    elif change == "arguments":
        overrides = {"prepare_script_args": {"split": "test"}}
    elif change == "config":
        overrides = {"hf_token": "another"}
    else:
        monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", "/mirror")
    check_stop_record(*resolved(made, **overrides))


def test_a_record_holds_for_every_command_whatever_the_model_and_the_token(
    made: MadeBenchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEMO_GYM_TOKEN", "of-the-first-job")
    write_stop_record(ERROR, *resolved(made))
    monkeypatch.setenv("NEMO_GYM_TOKEN", "of-the-second-job")
    model = {"policy_model": {"responses_api_models": {"m": {"entrypoint": "app.py"}}}, "policy_api_key": "k"}
    with pytest.raises(PreparationFailedError):
        check_stop_record(*resolved(made, **model))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"kind": 1}'])
def test_a_file_that_is_no_record_is_named(made: MadeBenchmark, content: str) -> None:
    config, benchmark = resolved(made)
    path = stop_record_path(config, benchmark.name)
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"preparation_failed-demo.json.* Delete it."):
        check_stop_record(config, benchmark)


def test_a_record_that_cannot_be_written_is_a_warning(
    made: MadeBenchmark, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "results").write_text("")
    assert write_stop_record(ERROR, *resolved(made)) is None
    assert "Cannot record the failed preparation" in caplog.text


def test_a_file_in_the_place_of_the_results_directory_is_no_record(
    made: MadeBenchmark, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "results").write_text("mine")
    config, benchmark = resolved(made)
    with stop_recorded(config, [benchmark]):
        pass
    assert (tmp_path / "results").read_text() == "mine"
    assert caplog.text == ""


def test_a_record_that_cannot_be_removed_is_a_warning(made: MadeBenchmark, caplog: pytest.LogCaptureFixture) -> None:
    config, benchmark = resolved(made)
    stop_record_path(config, benchmark.name).mkdir(parents=True)
    clear_stop_record(config, benchmark)
    assert "Cannot remove the record of an earlier failed preparation, results/prep" in caplog.text


def test_the_guard_records_a_failure_stops_the_next_run_and_clears_after_a_success(made: MadeBenchmark) -> None:
    config, benchmark = resolved(made)
    path = stop_record_path(config, benchmark.name)
    with pytest.raises(PreparationFailedError) as caught, stop_recorded(config, [benchmark]):
        raise PreparationFailedError("benchmarks.demo.prepare", "prepare", "no luck")
    assert caught.value.__notes__ == [
        f"Recorded in {path}, which stops the next job of a chain. To try again, delete that file."
    ]
    reached = False
    with pytest.raises(PreparationFailedError, match="no luck"), stop_recorded(config, [benchmark]):
        reached = True
    assert not reached
    made.script.write_text(made.script.read_text() + "\n# corrected\n")
    with pytest.raises(ConfigError), stop_recorded(config, [benchmark]):
        raise ConfigError("another fault, which is not recorded")
    assert "no luck" in path.read_text()
    with stop_recorded(config, [benchmark]):
        write_stop_record(ERROR, config, benchmark)
    assert not path.exists()
