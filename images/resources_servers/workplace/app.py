"""A small company's mail, calendar and files as tools, and a verifier that compares where they stand in the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from images.resources_servers.workplace.comparison import State, differences, state_of
from images.resources_servers.workplace.events import CalendarTools
from images.resources_servers.workplace.files import FileTools
from images.resources_servers.workplace.mail import MailTools
from images.resources_servers.workplace.office import Arguments, Office, office_of
from nemo_gym.servers.base import parameter_types
from nemo_gym.servers.messages import JsonDict, RunRequest, VerifyRequest, problems_of
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import InvalidRequestError, RequestError, ResourcesServer, Session, tool, tool_names

COMPANY = Path(__file__).with_name("company.json")


class Action(BaseModel):
    """One call of a tool."""

    name: str
    arguments: JsonDict = Field(default_factory=dict)


class Row(VerifyRequest):
    """What a row must carry for its session to be judged: calls that do what the task asks, if it asks for any."""

    reference_actions: list[Action]


class PeopleSearch(Arguments):
    words: str = Field(description="A part of a name, address, role or team; empty for everybody.")


class Workplace(MailTools, CalendarTools, FileTools, ResourcesServer):
    """Reward 1.0 when mail, calendar and files stand as the reference actions leave them, and 0.0 otherwise."""

    reverify_mode = "unsupported"

    async def running(self) -> AsyncIterator[None]:
        self._office = Office.seeded(COMPANY)
        self._state_before = state_of(self._office)
        async for _ in super().running():
            yield
        self._office.close()

    async def seed_session(self, row: RunRequest, session: Session) -> None:
        self.session_closed(session)
        session.state.clear()
        session.state["office"] = self._office.copy()

    def session_closed(self, session: Session) -> None:
        office = session.state.pop("office", None)
        if office is not None:
            office.close()

    @tool
    async def find_people(self, search: PeopleSearch, session: Session) -> dict[str, Any]:
        """Look people up: colleagues, customers and others, with their mail addresses."""
        found = office_of(session).select(
            "SELECT name, address, role, team FROM people"
            " WHERE instr(lower(name || ' ' || address || ' ' || role || ' ' || team), lower(?)) > 0 ORDER BY name",
            search.words,
        )
        return {"people": found}

    async def verify(self, row: Row, session: Session) -> JsonDict:
        verdict: JsonDict | None = session.state.get("verdict")
        if verdict is None:
            expected = await self._state_after(row.reference_actions)
            wrong = differences(self._state_before, expected, state_of(office_of(session)))
            verdict = {"reward": 0.0 if wrong else 1.0, "differences": wrong}
            # A session that has been judged holds its verdict only: thousands of them take no room.
            self.session_closed(session)
            session.state["verdict"] = verdict
        return verdict

    async def _state_after(self, actions: list[Action]) -> State:
        """Where the office stands that a rollout begins with, after ``actions``."""
        with closing(self._office.copy()) as office:
            session = Session(id="reference", state={"office": office})
            for position, action in enumerate(actions):
                await self._carry_out(action, session, f"reference_actions.{position}")
            return state_of(office)

    async def _carry_out(self, action: Action, session: Session, field: str) -> None:
        """Call a tool. One that fails is a mistake of the row, at ``field``."""
        if action.name not in tool_names(type(self)):
            raise InvalidRequestError.of_field(f"{field}.name", f"there is no tool {action.name!r}")
        method = getattr(self, action.name)
        argument_type = next(kind for kind in parameter_types(method).values() if kind is not Session)
        try:
            await method(argument_type.model_validate(action.arguments), session)
        except ValidationError as error:
            place = (*field.split("."), "arguments")
            problems = [{**problem, "loc": (*place, *problem["loc"])} for problem in problems_of(error)]
            raise InvalidRequestError(problems) from None
        except RequestError as error:
            raise InvalidRequestError.of_field(field, str(error)) from None


if __name__ == "__main__":
    raise SystemExit(run_server(Workplace))
