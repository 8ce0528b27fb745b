"""What README.md and docs/ say holds: commands exist, examples run, links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import itertools
import json
import re
import shlex
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from pydantic import BaseModel

from nemo_gym.cli.arguments import refuse_leftovers
from nemo_gym.cli.main import build_parser
from nemo_gym.config.resolve import load_config
from nemo_gym.containers.builds import BUILD_TIMEOUT_S
from nemo_gym.containers.pulls import STALL_TIMEOUT_S
from nemo_gym.deployment import settings
from nemo_gym.deployment.topology import ContainerSettings
from nemo_gym.servers.agent import AgentSettings
from nemo_gym.servers.base import ServerSettings
from nemo_gym.servers.resources import ResourcesSettings
from tests.support.documented import ROOT, blocks_of, name_of, needs_engine, pages, work_through

PAGES = pages()
NOTES = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "images").rglob("README.md")),
    *sorted((ROOT / "benchmarks").rglob("README.md")),
]
LANGUAGES = {"bash", "python", "yaml", "text"}
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_is_of_a_kind_that_is_checked(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in LANGUAGES, f"{name_of(page)}:{block.line}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_exists_and_takes_its_options(page: Path) -> None:
    for block in blocks_of(page):
        if block.language != "bash":
            continue
        for words in block.commands():
            arguments, leftovers = build_parser().parse_known_args(words[1:])
            refuse_leftovers(arguments, leftovers)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_program_is_python_and_every_config_can_be_read(page: Path, tmp_path: Path) -> None:
    for block in blocks_of(page):
        if block.language == "python":
            ast.parse(block.text)
        elif block.language == "yaml" and block.title is None:
            config = tmp_path / "config.yaml"
            config.write_text(block.text, encoding="utf-8")
            assert load_config([str(config)], {}, serving=False)
        elif block.language == "yaml":
            assert yaml.safe_load(block.text)


@pytest.mark.parametrize("page", [page for page in PAGES if not needs_engine(page)], ids=name_of)
def test_pages_that_need_no_engine_can_be_followed(page: Path, tmp_path: Path) -> None:
    runnable = [b for b in blocks_of(page) if b.shown is None and b.title is None and b.language in ("bash", "python")]
    assert work_through(page, tmp_path) == len(runnable)


@pytest.mark.parametrize("page", [ROOT / "README.md", *NOTES], ids=name_of)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in _LINK.findall(text):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https", f"{name_of(page)}: {target}"
            continue
        path = (page.parent / parts.path).resolve() if parts.path else page
        assert path.exists(), f"{name_of(page)}: {target}"
        if parts.fragment:
            assert parts.fragment in anchors_of(path), f"{name_of(page)}: {target}"


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = _HEADING.findall(page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_navigation_has_every_page() -> None:
    # tags such as !!python/name are MkDocs' own affair
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = set(re.findall(r"([\w/-]+\.md)\s*$", text, re.MULTILINE))
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}


@pytest.mark.parametrize("recipe", sorted((ROOT / "docs" / "recipes").glob("*.yml")), ids=name_of)
def test_recipes_for_ci_use_commands_that_exist(recipe: Path) -> None:
    assert yaml.safe_load(recipe.read_text(encoding="utf-8"))
    joined = re.sub(
        r"\\\n|\n +--", lambda found: " --" if "--" in found[0] else " ", recipe.read_text(encoding="utf-8")
    )
    commands = re.findall(r"\.venv/bin/gym ([^>\n;]+)", joined)
    assert len(commands) >= 3
    for command in commands:
        arguments, leftovers = build_parser().parse_known_args(shlex.split(command.replace("$LIMIT", "20")))
        refuse_leftovers(arguments, leftovers)


@pytest.mark.parametrize("module", ["nemo_gym.environment", "nemo_gym.testing", "nemo_gym.errors"])
def test_the_reference_has_every_public_name(module: str) -> None:
    page = (ROOT / "docs" / "reference" / f"{module.rpartition('.')[2]}.md").read_text(encoding="utf-8")
    if re.search(rf"^::: {re.escape(module)}$", page, re.MULTILINE):
        return  # the whole module, whatever is in it
    documented = {line.rpartition(".")[2] for line in page.splitlines() if line.startswith("::: ")}
    assert set(importlib.import_module(module).__all__) <= documented


@pytest.mark.parametrize(
    ("heading", "following", "model", "untold"),
    [
        ("## Containers", "## Images", ContainerSettings, set()),
        # where a server listens in its container is no setting of a user's
        ("## Servers", "## Containers", ServerSettings, {"host", "port"}),
    ],
)
def test_settings_are_told_with_their_defaults(
    heading: str, following: str, model: type[BaseModel], untold: set[str]
) -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    section = page[page.index(heading) : page.index(following)]
    told = {}
    for keys, defaults in re.findall(r"^\| (`[^|]+`) \| ([^|]*)\|", section, re.MULTILINE):
        names, values = (re.findall(r"`([^`]+)`", cell) for cell in (keys, defaults))
        told.update(itertools.zip_longest(names, values, fillvalue=""))
    fields = {
        name: field.get_default(call_default_factory=True)
        for name, field in model.model_fields.items()
        if name not in untold
    }
    assert told == {
        name: json.dumps(value).strip('"') if value not in (None, []) else "" for name, value in fields.items()
    }


@pytest.mark.parametrize(
    ("key", "default"),
    [
        ("image_build_timeout_seconds", BUILD_TIMEOUT_S),
        ("image_pull_stall_timeout_seconds", STALL_TIMEOUT_S),
        ("server_start_timeout_seconds", settings.START_TIMEOUT_S),
        ("server_ready_timeout_seconds", settings.SERVER_READY_TIMEOUT_S),
        ("model_endpoint_readiness_timeout_seconds", settings.ENDPOINT_READY_TIMEOUT_S),
        ("server_stop_grace_seconds", settings.STOP_GRACE_S),
        ("resources_timeout_s` of an agent", AgentSettings.model_fields["resources_timeout_s"].default),
        ("session_idle_s` of a resources server", ResourcesSettings.model_fields["session_idle_s"].default),
    ],
)
def test_deadlines_are_told_with_their_defaults(key: str, default: float) -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{re.escape(key)}`? \| {default:g} \|", page, re.MULTILINE)
