"""Names of settings that are nearly right are told, and names of one's own are not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.instances import SETTINGS
from nemo_gym.config.merging import Layer
from nemo_gym.config.near_misses import list_near_misses
from nemo_gym.config.resolve import load_config

FILE = {
    "judge_api_key": "${judge_key}",
    "retries_1": 2,
    "policy_model": {"responses_api_models": {"llama_cpp_model": {"context_size": 4096, "default_params": {}}}},
}


def told(given: dict[str, Any]) -> list[str]:
    return list_near_misses([Layer("config.yaml", FILE), Layer("overrides", given, by_caller=True)])


@pytest.mark.parametrize(
    ("given", "path", "meant"),
    [
        ({"server_redy_timeout_seconds": 5}, "server_redy_timeout_seconds", "server_ready_timeout_seconds"),
        ({"polcy_base_url": "http://a"}, "polcy_base_url", "policy_base_url"),
        ({"judge_api_keys": "k"}, "judge_api_keys", "judge_api_key"),
        (
            {"policy_model": {"responses_api_models": {"llama_cpp_model": {"context_sise": 1}}}},
            "policy_model.responses_api_models.llama_cpp_model.context_sise",
            "policy_model.responses_api_models.llama_cpp_model.context_size",
        ),
    ],
)
def test_a_name_that_is_nearly_one_that_is_there(given: dict[str, Any], path: str, meant: str) -> None:
    assert told(given) == [f"overrides: no config file has {path}. Is {meant} meant?"]


@pytest.mark.parametrize(
    "given",
    [
        {"judge_key": "x"},  # the file refers to it
        {"server_ready_timeout_seconds": 5, "judge_api_key": "k", "retries_2": 3, "note": "x"},
        {"policy_model_2": {"responses_api_models": {"openai_model": {"openai_model": "m"}}}},
        {"policy_model": {"responses_api_models": {"llama_cpp_model": {"context_size": 1, "num_workers": 2}}}},
        {"policy_model": {"responses_api_models": {"llama_cpp_model": {"default_params": {"temperature": 0}}}}},
        {"policy_model": {"responses_api_models": {"another_model": {"context_sise": 1}}}},
    ],
)
def test_a_name_of_ones_own(given: dict[str, Any]) -> None:
    assert told(given) == []


def test_files_say_what_they_like() -> None:
    assert list_near_misses([Layer("config.yaml", {**FILE, "polcy_base_url": 1})]) == []


def test_it_is_a_warning_when_a_config_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("x: 1")
    assert load_config(["a.yaml"], {"results_dirr": "r"}, serving=False).results_dirr == "r"
    assert caplog.messages == ["overrides: no config file has results_dirr. Is results_dir meant?"]


def test_the_documented_settings_are_known() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    section = page[page.index("## Deadlines") : page.index("## Data")]
    documented = {key.partition(".")[0] for key in re.findall(r"^\| `([^`]+)`(?:, `[^`]+`)? \|", section, re.MULTILINE)}
    assert len(documented) >= 10
    assert documented <= SETTINGS
