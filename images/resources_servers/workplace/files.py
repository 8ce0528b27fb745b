"""The shared drive: list, search, read, write, move, copy, delete."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import Field

from images.resources_servers.workplace.office import Arguments, Office, office_of
from nemo_gym.servers.resources import RequestError, Session, tool

Path = Annotated[
    str, Field(pattern=r"^(/[A-Za-z0-9_][A-Za-z0-9_.-]*)+$", max_length=200, description="Such as /office/rooms.md.")
]


class FolderChoice(Arguments):
    folder: str = Field(description="Such as /office; / for all files.")


class FileSearch(Arguments):
    words: str = Field(min_length=1, description="A text in the path or the content.")


class FileChoice(Arguments):
    path: Path


class FileContent(Arguments):
    path: Path
    content: str = Field(description="The whole new content.")
    overwrite: bool = Field(default=False, description="Whether a file that is there already may be replaced.")


class FileAddition(Arguments):
    path: Path
    text: str = Field(min_length=1, description="What to add at the end, on a line of its own.")


class FileTarget(Arguments):
    path: Path
    new_path: Path


class FileTools:
    """Tools of the shared drive. Folders come and go with the files in them."""

    @tool
    async def list_files(self, choice: FolderChoice, session: Session) -> dict[str, Any]:
        """List the files in a folder and all folders below it."""
        office = office_of(session)
        folder = choice.folder.rstrip("/") + "/"
        found = [path for path in _paths(office) if path.startswith(folder)]
        if not found:
            raise RequestError(404, "not_found", f"there are no files in {choice.folder!r}; / lists all there are")
        return {"files": found}

    @tool
    async def search_files(self, search: FileSearch, session: Session) -> dict[str, Any]:
        """Find files by a text."""
        found = office_of(session).select(
            "SELECT path FROM files WHERE instr(lower(path || char(10) || content), lower(?)) > 0 ORDER BY path",
            search.words,
        )
        return {"files": [row["path"] for row in found]}

    @tool
    async def read_file(self, choice: FileChoice, session: Session) -> dict[str, Any]:
        """Show a file's content."""
        return {"path": choice.path, "content": _content(office_of(session), choice.path)}

    @tool
    async def write_file(self, file: FileContent, session: Session) -> dict[str, Any]:
        """Make a file or, with overwrite, give one a new content."""
        office = office_of(session)
        replaced = file.path in _paths(office)
        if replaced and not file.overwrite:
            raise RequestError(409, "exists", f"{file.path} is there already; with overwrite it is replaced")
        _check_free(office, file.path, may_exist=True)
        with office.transaction():
            office.change("INSERT OR REPLACE INTO files (path, content) VALUES (?, ?)", file.path, file.content)
        return {"path": file.path, "replaced": replaced}

    @tool
    async def append_to_file(self, addition: FileAddition, session: Session) -> dict[str, Any]:
        """Add a text at the end of a file."""
        office = office_of(session)
        content = _content(office, addition.path)
        if content and not content.endswith("\n"):
            content += "\n"
        content += addition.text.rstrip("\n") + "\n"
        with office.transaction():
            office.change("UPDATE files SET content = ? WHERE path = ?", content, addition.path)
        return {"path": addition.path, "content": content}

    @tool
    async def move_file(self, target: FileTarget, session: Session) -> dict[str, Any]:
        """Give a file another path."""
        office = office_of(session)
        _content(office, target.path)
        _check_free(office, target.new_path)
        with office.transaction():
            office.change("UPDATE files SET path = ? WHERE path = ?", target.new_path, target.path)
        return {"moved_from": target.path, "moved_to": target.new_path}

    @tool
    async def copy_file(self, target: FileTarget, session: Session) -> dict[str, Any]:
        """Make a second file with the same content."""
        office = office_of(session)
        content = _content(office, target.path)
        _check_free(office, target.new_path)
        with office.transaction():
            office.insert("files", {"path": target.new_path, "content": content})
        return {"copied_from": target.path, "copied_to": target.new_path}

    @tool
    async def delete_file(self, choice: FileChoice, session: Session) -> dict[str, Any]:
        """Delete a file for good."""
        office = office_of(session)
        _content(office, choice.path)
        with office.transaction():
            office.change("DELETE FROM files WHERE path = ?", choice.path)
        return {"deleted": choice.path}


def _paths(office: Office) -> list[str]:
    return [row["path"] for row in office.select("SELECT path FROM files ORDER BY path")]


def _content(office: Office, path: str) -> str:
    found = office.select("SELECT content FROM files WHERE path = ?", path)
    if not found:
        near = difflib.get_close_matches(path, _paths(office), n=1)
        hint = f"did you mean {near[0]}?" if near else "list_files shows those there are"
        raise RequestError(404, "not_found", f"there is no file {path}; {hint}")
    return str(found[0]["content"])


def _check_free(office: Office, path: str, *, may_exist: bool = False) -> None:
    """Refuse a path that is taken, or that would make a folder of a file or a file of a folder."""
    for taken in _paths(office):
        if (taken == path and not may_exist) or taken.startswith(path + "/") or path.startswith(taken + "/"):
            raise RequestError(409, "exists", f"{path} cannot be made: {taken} is there already")
