from __future__ import annotations

from typing import Any

import pytest

from nemo_gym.config.comparison import comparable_config, config_digest, differing_keys

CONFIG: dict[str, Any] = {
    "config_paths": ["/a/b.yaml"],
    "policy_base_url": "http://127.0.0.1:8000/v1",
    "policy_api_key": "***",
    "policy_model_name": "m",
    "image_build_timeout_seconds": 5,
    "policy_model": {
        "responses_api_models": {
            "openai_model": {
                "openai_base_url": "http://127.0.0.1:8000/v1",
                "openai_model": "m",
                "request_timeout_s": 60,
                "retry": {"attempts": 6},
            }
        }
    },
    "verifier": {"resources_servers": {"code": {"request_timeout_s": 3, "container": {"memory": "1g"}}}},
    "agent": {
        "responses_api_agents": {"simple_agent": {"datasets": [{"jsonl_fpath": "x", "name": "d", "num_repeats": 1}]}}
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    def copy(node: Any, steps: list[str]) -> Any:
        if not steps:
            return value
        if isinstance(node, list):
            return [copy(node[0], steps[1:])]
        return {**node, steps[0]: copy(node.get(steps[0], {}), steps[1:])}

    result: dict[str, Any] = copy(CONFIG, path.split("."))
    return result


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("config_paths", ["/elsewhere.yaml"]),
        ("policy_api_key", "other"),
        ("image_lock", "x_images.lock.json"),
        ("image_build_timeout_seconds", 7),
        ("server_ready_timeout_seconds", 7),
        ("policy_model.responses_api_models.openai_model.request_timeout_s", 1),
        ("policy_model.responses_api_models.openai_model.retry", {"attempts": 1}),
        ("policy_model.responses_api_models.openai_model.port", 5),
        ("verifier.resources_servers.code.container", {"memory": "2g"}),
        ("verifier.resources_servers.code.num_workers", 2),
        ("agent.responses_api_agents.simple_agent.datasets.0.num_repeats", 4),
    ],
)
def test_what_may_change(path: str, value: Any) -> None:
    assert differing_keys(CONFIG, changed(path, value)) == []
    assert config_digest(CONFIG) == config_digest(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("policy_model_name", "other"),
        ("skip_verification", True),
        ("responses_create_params.temperature", 0.5),
        ("policy_model.responses_api_models.openai_model.openai_model", "other"),
        ("verifier.resources_servers.code.request_timeout_s", 1),
        ("agent.responses_api_agents.simple_agent.max_steps", 3),
    ],
)
def test_what_may_not_and_is_named(path: str, value: Any) -> None:
    assert differing_keys(CONFIG, changed(path, value)) == [path]
    assert config_digest(CONFIG) != config_digest(changed(path, value))


def test_an_endpoint_may_move_and_is_followed_to_where_it_is_used() -> None:
    moved = changed("policy_model.responses_api_models.openai_model.openai_base_url", "http://h:1/v1")
    assert differing_keys(CONFIG, moved) == ["policy_model.responses_api_models.openai_model.openai_base_url"]
    assert differing_keys(CONFIG, {**moved, "policy_base_url": "http://h:1/v1"}) == []
    assert "policy_base_url" not in comparable_config(CONFIG)
