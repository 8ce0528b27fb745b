"""What MkDocs runs while it builds the documentation (``hooks`` in mkdocs.yml): pages made from the sources."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File, Files

from nemo_gym.cli.main import build_parser
from scripts.docs_pages import NOTES, command_reference, folder_pages, without_foreign_links

ROOT = Path(__file__).resolve().parents[1]
COMMANDS_MARK = "<!-- commands -->"
SECTIONS = {"Servers": "images/", "Benchmarks": "benchmarks/"}


def on_config(config: Any) -> Any:
    """The sections of servers and benchmarks, and the notes, at the end of the navigation."""
    pages = folder_pages(ROOT)
    for section, folder in SECTIONS.items():
        config.nav.append(
            {section: [{_title(page): page} for page in pages if page.startswith(folder) and page not in NOTES]}
        )
    config.nav.append({"Project": list(NOTES)})
    return config


def on_files(files: Files, config: Any) -> Files:
    for page, path in folder_pages(ROOT).items():
        files.append(File.generated(config, page, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    uri = page.file.src_uri
    if COMMANDS_MARK in markdown:
        return markdown.replace(COMMANDS_MARK, command_reference(build_parser()))
    if uri in folder_pages(ROOT):
        return without_foreign_links(markdown, uri, {file.src_uri for file in files})
    return markdown


def _title(page: str) -> str:
    parts = page.split("/")
    return "Overview" if len(parts) == 2 else parts[-2]


class LiteralBlocks(griffe.Extension):
    """Docstrings of this package end the line before an indented block with ``::``, which Markdown would show."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"(?m)(?:^::$|(?<=\S):(?=:$)|(?<=:):$)", "", obj.docstring.value)
