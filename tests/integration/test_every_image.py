"""Every server image of the checkout is built, and its server answers: what `make gate` runs on the engine."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.environment.serving import serve
from tests.support.documented import ROOT
from tests.support.scripted_endpoint import ScriptedEndpoint

FOLDERS = sorted(path.parent for path in (ROOT / "images").glob("*/*/config.yaml"))
MODELS = [folder.name for folder in FOLDERS if folder.parent.name == "responses_api_models"]
FIRST = "openai_model"


def configs_served_with(model: str) -> list[Path]:
    """The model's config; with the first, those of all servers that are none."""
    models = [folder for folder in FOLDERS if folder.name == model]
    others = [folder for folder in FOLDERS if folder.name not in MODELS] if model == FIRST else []
    return [folder / "config.yaml" for folder in [*models, *others]]


def names_in(config: Path) -> set[str]:
    """The servers that a config file declares."""
    content: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    return {name for name, entry in content.items() if isinstance(entry, dict)}


@pytest.mark.parametrize("model", MODELS)
def test_each_server_is_built_and_answers(model: str) -> None:
    configs = configs_served_with(model)
    with ScriptedEndpoint(lambda prompt: "A") as endpoint:
        judge = {key.replace("policy", "judge"): value for key, value in endpoint.overrides().items()}
        with serve(configs, {**endpoint.overrides(), **judge}) as session:
            served = {server.name: server for server in session.servers}
            assert set().union(*map(names_in, configs)) <= set(served)
            for name, server in served.items():
                # one without a port has answered through the engine: serving does not begin before
                if server.port is not None:
                    with urllib.request.urlopen(f"http://{server.host}:{server.port}/", timeout=30) as reply:
                        said = json.load(reply)
                    assert (said["status"], said["server"]) == ("ok", name)


def test_no_image_folder_is_forgotten() -> None:
    served = {path.parent for model in MODELS for path in configs_served_with(model)}
    folders = {path.parent for path in (ROOT / "images").glob("*/*/app.py")}
    # the registry is part of every session, and stands one level higher; test_testing.py starts the scripted endpoint
    assert folders - served == {ROOT / "images" / "testing" / "model_endpoint"}
