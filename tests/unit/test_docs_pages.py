"""Pages made from the sources: the command line's reference, READMEs as pages, the check of a built site."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from nemo_gym.cli.main import build_parser
from scripts.docs_pages import command_reference, folder_pages, without_foreign_links
from scripts.docs_site_check import find_faults
from tests.support.documented import ROOT


def small_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tool")
    groups = parser.add_subparsers(metavar="COMMAND")
    fruit = groups.add_parser("fruit", help="what grows on trees").add_subparsers(metavar="COMMAND")
    pick = fruit.add_parser("pick", help="pick some", description="Pick a_b|c, and `x_y` as it is.")
    pick.add_argument("name", metavar="NAME", help="which *one*")
    pick.add_argument("-n", "--number", type=int, default=3, metavar="N", help="how many; %(default)s when left out")
    pick.add_argument("--all", action="store_true", help="all|every")
    pick.add_argument("--secret", help=argparse.SUPPRESS)
    return parser


def test_a_command_has_its_usage_text_and_arguments() -> None:
    text = command_reference(small_parser())
    assert "## tool fruit\n\nWhat grows on trees.\n" in text
    assert "### tool fruit pick\n\nPick a\\_b|c, and `x_y` as it is.\n\n```text\ntool fruit pick [-h]" in text
    assert "| `NAME` | which \\*one\\* |" in text
    assert "| `-n N`, `--number N` | how many; 3 when left out |" in text
    assert "| `--all` | all\\|every |" in text
    assert "secret" not in text.replace("--secret SECRET", "")


def test_every_command_of_ours_is_there_with_each_of_its_options() -> None:
    text = command_reference(build_parser())
    for group in ("list", "env", "eval", "images", "new"):
        assert f"\n## gym {group}\n" in f"\n{text}"
    run = text[text.index("### gym eval run\n") :].partition("\n### ")[0]
    for option in ("--benchmark NAME", "--resume", "--limit N", "--temperature T", "--json"):
        assert f"`{option}`" in run


def test_readmes_of_images_and_benchmarks_are_pages() -> None:
    pages = folder_pages(ROOT)
    folders = {path.parent for kind in ("images/*/*", "benchmarks/*") for path in ROOT.glob(f"{kind}/config.yaml")}
    assert folders <= {path.parent for path in pages.values()}
    assert pages["images/registry/README.md"] == ROOT / "images/registry/README.md"


PAGES = {"images/README.md", "images/a/b/README.md", "benchmarks/x/README.md", "how-to/model.md", "CONTRIBUTING.md"}


@pytest.mark.parametrize(
    ("page", "text", "shown"),
    [
        ("images/a/b/README.md", "[x](../../../benchmarks/x/README.md)", "[x](../../../benchmarks/x/README.md)"),
        ("images/README.md", "[c](../CONTRIBUTING.md#add)", "[c](../CONTRIBUTING.md#add)"),
        (
            "images/a/b/README.md",
            "[config](config.yaml) and [web](https://a.example)",
            "config and [web](https://a.example)",
        ),
        ("CONTRIBUTING.md", "[images](images)", "[images](images/README.md)"),
        ("images/README.md", "[b](a/b)", "[b](a/b/README.md)"),
        ("CONTRIBUTING.md", "[m](docs/how-to/model.md#keys)", "[m](how-to/model.md#keys)"),
        ("images/README.md", "[m](../docs/how-to/model.md)", "[m](../how-to/model.md)"),
        ("images/README.md", "[here](#there)", "[here](#there)"),
        ("images/README.md", "```\n[config](config.yaml)\n```\n", "```\n[config](config.yaml)\n```\n"),
    ],
)
def test_links_to_what_is_no_page_are_left_as_text(page: str, text: str, shown: str) -> None:
    assert without_foreign_links(text, page, PAGES) == shown


def test_a_site_is_checked_for_links_anchors_and_what_it_loads(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">T</h1><a href="sub/two.html#here">2</a><a href="#top">t</a><a href="https://a.example">w</a>'
        '<link rel="canonical" href="https://b.example"><img src="data:image/png;base64,AA">'
    )
    (tmp_path / "sub" / "two.html").write_text('<p id="here"><a href="../index.html">1</a><a href="..">up</a></p>')
    assert find_faults(tmp_path) == []
    (tmp_path / "sub" / "two.html").write_text(
        '<a href="three.html">3</a><a href="../index.html#gone">g</a><script src="https://cdn.example/x.js"></script>'
        '<img src="none.png">'
    )
    assert find_faults(tmp_path) == [
        "index.html: sub/two.html#here leads nowhere",
        "sub/two.html: loads https://cdn.example/x.js from elsewhere",
        "sub/two.html: three.html leads nowhere",
        "sub/two.html: ../index.html#gone leads nowhere",
        "sub/two.html: none.png leads nowhere",
    ]
    assert find_faults(tmp_path / "sub" / "empty") != []
