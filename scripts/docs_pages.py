"""Pages of the documentation that are made from what is there already: the command line, READMEs of folders.

Values and texts only; scripts/docs_hooks.py hands them to MkDocs.
"""

from __future__ import annotations

import argparse
import posixpath
import re
from collections.abc import Collection, Iterator
from pathlib import Path

NOTES = ("CONTRIBUTING.md", "CHANGELOG.md", "images/NOTICES.md")
_FENCED = re.compile(r"^(?P<fence>`{3,}).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]+)\]\((?P<target>[^()\s]+)\)")
_CODE = re.compile(r"(`+[^`]+`+)")


def folder_pages(root: Path) -> dict[str, Path]:
    """The README of every image and benchmark folder, and the notes of the project, by the page that each becomes."""
    found = [
        root / "images" / "README.md",
        *sorted(root.glob("images/*/README.md")),
        *sorted(root.glob("images/*/*/README.md")),
        root / "benchmarks" / "README.md",
        *sorted(root.glob("benchmarks/*/README.md")),
        *(root / name for name in NOTES),
    ]
    return {path.relative_to(root).as_posix(): path for path in found}


def without_foreign_links(text: str, page: str, pages: Collection[str]) -> str:
    """``text`` with links to what is no page (a config file, a script) left as their text.

    ``page`` is where it stands, and ``pages`` are all there are, both relative to the site's root.
    """

    def kept(link: re.Match[str]) -> str:
        target = link["target"].partition("#")[0]
        if not target or "://" in target or target.startswith("mailto:"):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
        if path in pages:
            return link[0]
        if posixpath.join(path, "README.md") in pages:
            return f"[{link['text']}]({posixpath.join(target, 'README.md')})"
        if path.startswith("docs/") and path.removeprefix("docs/") in pages:
            # written for a reader of the repository: in the site, docs/ is the root
            here = posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(page) or ".")
            return f"[{link['text']}]({here}{link['target'][len(target) :]})"
        return link["text"]

    parts, end = [], 0
    for fenced in _FENCED.finditer(text):
        parts += [_LINK.sub(kept, text[end : fenced.start()]), fenced[0]]
        end = fenced.end()
    return "".join([*parts, _LINK.sub(kept, text[end:])])


# ------------------------------------------------------------------------------------------------- the command line


def command_reference(parser: argparse.ArgumentParser) -> str:
    """Every command of the parser as Markdown: its usage, what it does, and its arguments."""
    lines = []
    for group_name, summary, group in _commands(parser):
        lines += [f"## {parser.prog} {group_name}", "", _sentence(summary), ""]
        if not _has_commands(group):
            lines += _command(group, level=3, heading=False)
        for name, _, command in _commands(group):
            lines += [f"### {parser.prog} {group_name} {name}", "", *_command(command, level=4)]
    return "\n".join(lines)


def _command(command: argparse.ArgumentParser, *, level: int, heading: bool = True) -> list[str]:
    usage = command.format_usage().removeprefix("usage: ").strip()
    description = command.description or "" if heading else ""
    lines = [_sentence(description), "", "```text", usage, "```", ""]
    groups: dict[str, list[argparse.Action]] = {"": []}
    for group in command._action_groups:
        title = "" if group.title in ("positional arguments", "options") else group.title or ""
        groups.setdefault(title, []).extend(filter(_is_shown, group._group_actions))
    for title, actions in groups.items():
        if title:
            lines += [_sentence(title), ""]
        if actions:
            lines += ["| argument | |", "|---|---|"]
            lines += [f"| {_names(action)} | {_cell(_help(command, action))} |" for action in actions]
            lines.append("")
    return lines


def _commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """The name, summary and parser of each command below this one."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, command in action.choices.items():
                if name in summaries:  # hidden ones have none
                    yield name, summaries[name], command


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS and not isinstance(action, argparse._HelpAction)


def _has_commands(parser: argparse.ArgumentParser) -> bool:
    return any(isinstance(action, argparse._SubParsersAction) for action in parser._actions)


def _names(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return f"`{value}`"
    takes_value = action.nargs != 0
    return ", ".join(f"`{option} {value}`" if takes_value else f"`{option}`" for option in action.option_strings)


def _help(command: argparse.ArgumentParser, action: argparse.Action) -> str:
    return command._get_formatter()._expand_help(action) if action.help else ""


def _cell(text: str) -> str:
    return _prose(" ".join(text.split())).replace("|", "\\|")


def _sentence(text: str) -> str:
    """A text of the command line as a paragraph: begins with a capital, ends with a full stop."""
    text = text.strip()
    if not text:
        return ""
    return _prose(text[0].upper() + text[1:] + ("" if text[-1] in ".:!?" else "."))


def _prose(text: str) -> str:
    """``text`` with what Markdown would take for itself escaped, outside of code."""
    parts = _CODE.split(text)
    return "".join(part if index % 2 else re.sub(r"([*_<>\[\]])", r"\\\1", part) for index, part in enumerate(parts))
