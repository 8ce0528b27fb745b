"""Function tools made from a resources server's typed methods."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from nemo_gym.errors import ConfigError
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.resources import ResourcesServer, Session, tool
from nemo_gym.servers.tool_schemas import function_tools, load_server_type, main, tools_text

ROOT = Path(__file__).parents[2]


class Place(BaseModel):
    """For programmers."""

    city: str


class Search(BaseModel):
    """For programmers."""

    query: str = Field(description="Words to look for.", min_length=1)
    kind: Literal["mail", "file"]
    near: Place | None = None
    limit: int = Field(default=5, ge=1, title="Most")
    tags: list[str] = []


class Desk(ResourcesServer):
    @tool
    async def search(self, arguments: Search, session: Session) -> dict[str, Any]:
        """Find things.

        The best come first.
        """
        return {}

    @tool
    async def now(self, session: Session) -> dict[str, Any]:
        """Tell the time."""
        return {}

    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": 0.0}


def test_the_methods_become_strict_function_tools_by_name() -> None:
    assert function_tools(Desk) == [
        {
            "type": "function",
            "name": "now",
            "description": "Tell the time.",
            "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
            "strict": True,
        },
        {
            "type": "function",
            "name": "search",
            "description": "Find things.\n\nThe best come first.",
            "parameters": {
                "$defs": {
                    "Place": {
                        "description": "For programmers.",
                        "properties": {"city": {"type": "string"}},
                        "required": ["city"],
                        "type": "object",
                        "additionalProperties": False,
                    }
                },
                "properties": {
                    "query": {"description": "Words to look for.", "type": "string"},
                    "kind": {"enum": ["mail", "file"], "type": "string"},
                    "near": {"anyOf": [{"$ref": "#/$defs/Place"}, {"type": "null"}]},
                    "limit": {"minimum": 1, "type": "integer"},
                    "tags": {"items": {"type": "string"}, "type": "array"},
                },
                "required": ["query", "kind", "near", "limit", "tags"],
                "type": "object",
                "additionalProperties": False,
            },
            "strict": True,
        },
    ]


def test_the_text_is_the_same_each_time_and_reads_back() -> None:
    assert json.loads(tools_text(Desk)) == function_tools(Desk)
    assert tools_text(Desk) == tools_text(Desk)
    assert tools_text(Desk).endswith("]\n")


class Loose(BaseModel):
    anything: Any


class Keyed(BaseModel):
    counts: dict[str, int]


class Open(BaseModel, extra="allow"):
    name: str


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (Loose, r"anything may hold anything"),
        (Keyed, r"counts may hold anything"),
        (Open, r"its arguments may hold anything"),
        (dict[str, Any], r"takes anything; needed: a pydantic model"),
    ],
)
def test_a_tool_that_no_strict_schema_describes_is_refused(arguments: Any, said: str) -> None:
    class Vague(Desk):
        @tool
        async def vague(self, arguments: arguments) -> None:
            """Do something."""

    Vague.vague.__annotations__["arguments"] = arguments
    with pytest.raises(ConfigError, match=r"the tool Vague\.vague.*" + said):
        function_tools(Vague)


def test_a_tool_needs_a_docstring_and_a_name_that_is_free() -> None:
    class Silent(Desk):
        @tool
        async def silent(self) -> None:
            raise AssertionError

    with pytest.raises(ConfigError, match=r"Silent\.silent has no docstring"):
        function_tools(Silent)

    class Taken(Desk):
        @tool
        async def reverify_mode(self) -> None:  # type: ignore[override]
            """Meddle."""

    with pytest.raises(ConfigError, match="a tool cannot be called reverify_mode"):
        function_tools(Taken)


APP = """
from typing import Any
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.resources import ResourcesServer, tool

class Tiny(ResourcesServer):
    @tool
    async def knock(self) -> str:
        '''Knock.'''
        return "who is there"

    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        return {"reward": 1.0}
"""


def test_the_command_writes_the_tools_of_an_app(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP, encoding="utf-8")
    command = [sys.executable, "-m", "nemo_gym.servers.tool_schemas"]
    done = subprocess.run([*command, str(tmp_path / "app.py")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [made["name"] for made in json.loads(done.stdout)] == ["knock"]


def test_what_holds_no_server_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app.py"
    with pytest.raises(ConfigError, match=r"is no Python file; needed: a resources server's app\.py"):
        load_server_type(app)
    app.write_text("x = 1\n", encoding="utf-8")
    assert main([str(app)]) == 2
    assert "defines none; needed: one subclass of ResourcesServer" in capsys.readouterr().err
    app.write_text(APP + APP.replace("Tiny", "Other"), encoding="utf-8")
    assert main([str(app)]) == 2
    assert "defines Tiny, Other; needed: one" in capsys.readouterr().err
    assert main([]) == 2
    assert "usage: python -m nemo_gym.servers.tool_schemas" in capsys.readouterr().err
