from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.environment.verifiers import differing_settings, verifier_config
from nemo_gym.errors import ConfigError


def config(**more: Any) -> dict[str, Any]:
    """A benchmark whose verifier asks a judge, beside one that does not."""
    judge_ref = {"type": "responses_api_models", "name": "judge"}
    return {
        "judge_api_key": "k",
        "policy_base_url": "???",
        "asks": _resources(judge_model_server=judge_ref),
        "plain": _resources(),
        "judge": {"responses_api_models": {"openai_model": {"entrypoint": "app.py", "openai_api_key": "k"}}},
        "asks_agent": _agent("asks"),
        "plain_agent": _agent("plain"),
        **more,
    }


def _resources(**settings: Any) -> dict[str, Any]:
    return {"resources_servers": {"mcqa": {"entrypoint": "app.py", "domain": "other", **settings}}}


def _agent(verifier: str) -> dict[str, Any]:
    refs = {
        "resources_server": {"type": "resources_servers", "name": verifier},
        "model_server": {"type": "responses_api_models", "name": "policy_model"},
    }
    return {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", **refs}}}


def test_neither_agents_nor_the_policy_model_are_served() -> None:
    found = verifier_config(config(), {"plain_agent"})
    assert set(found.config) == {"judge_api_key", "plain"}
    assert found.verifier_of_agent == {"plain_agent": "plain"}
    assert found.others == ()


def test_a_judge_is_served_too() -> None:
    found = verifier_config(config(), {"asks_agent", "plain_agent"})
    assert set(found.config) == {"judge_api_key", "asks", "plain", "judge"}
    assert found.others == ("judge",)


@pytest.mark.parametrize(
    ("more", "agent", "said"),
    [
        (
            {},
            "plain_agnt",
            "the agent 'plain_agnt', which this configuration does not have. Did you mean the benchmark",
        ),
        ({}, "plain", "which this configuration does not have"),
        ({"none_agent": _agent("nowhere")}, "none_agent", "names no resources server"),
        (
            {"judge": None},
            "asks_agent",
            "'asks' calls 'judge', which this configuration does not have. Say which model",
        ),
    ],
)
def test_what_is_not_there(more: dict[str, Any], agent: str, said: str) -> None:
    given = {name: value for name, value in config(**more).items() if value is not None}
    with pytest.raises(ConfigError) as error:
        verifier_config(given, {agent})
    assert said in str(error.value)


def test_what_is_still_to_be_set() -> None:
    given = config(judge_api_key="???")
    given["judge"]["responses_api_models"]["openai_model"]["openai_api_key"] = "???"
    with pytest.raises(
        ConfigError, match=r"judge\.responses_api_models\.openai_model\.openai_api_key\. Give judge_api_"
    ):
        verifier_config(given, {"asks_agent"})
    assert verifier_config(given, {"plain_agent"}).config == {"plain": _resources()}


def test_settings_of_the_verifier_that_differ_from_the_runs() -> None:
    now = verifier_config(config(plain=_resources(strict=True)), {"plain_agent"})
    assert differing_settings(config(judge_api_key="***"), now) == {
        "plain.resources_servers.mcqa.strict": (None, "true")
    }
