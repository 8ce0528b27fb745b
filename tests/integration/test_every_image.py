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
MODELS = [folder for folder in FOLDERS if folder.parent.name == "responses_api_models"]
OTHERS = [folder for folder in FOLDERS if folder not in MODELS]
SERVED_TOGETHER = 4
# A model that needs no weights, for those that refer to one; and what agents refer to by default.
A_MODEL = ROOT / "images" / "responses_api_models" / "openai_model"
A_VERIFIER = ROOT / "images" / "resources_servers" / "mcqa"


def batches() -> list[list[Path]]:
    """The folders of each session: a few servers at a time, and each kind of model by itself."""
    few = [OTHERS[start : start + SERVED_TOGETHER] for start in range(0, len(OTHERS), SERVED_TOGETHER)]
    return [[model] for model in MODELS] + [list(dict.fromkeys([A_MODEL, A_VERIFIER, *some])) for some in few]


def names_in(config: Path) -> set[str]:
    """The servers that a config file declares."""
    content: dict[str, Any] = yaml.safe_load(config.read_text(encoding="utf-8"))
    return {name for name, entry in content.items() if isinstance(entry, dict)}


@pytest.mark.parametrize("folders", batches(), ids=lambda folders: folders[-1].name)
def test_each_server_is_built_and_answers(folders: list[Path]) -> None:
    configs = [folder / "config.yaml" for folder in folders]
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
    folders = {path.parent for path in (ROOT / "images").glob("*/*/app.py")}
    # the registry is part of every session, and stands one level higher; test_testing.py starts the scripted endpoint
    assert folders - {folder for batch in batches() for folder in batch} == {ROOT / "images/testing/model_endpoint"}
