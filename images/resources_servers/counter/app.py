"""A counter for each session, and a verifier that looks at where it stands in the end."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from nemo_gym.servers.messages import RunRequest, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import RequestError, ResourcesServer, Session, tool


class SeedRow(RunRequest):
    """What a row must carry for its session to begin."""

    start_value: int


class Row(VerifyRequest):
    """What a row must carry for its session to be judged."""

    expected_value: int


class Amount(BaseModel):
    model_config = ConfigDict(extra="forbid")

    by: int = Field(ge=1, le=1000, description="How much, from 1 to 1000.")


class Counter(ResourcesServer):
    """Reward 1.0 when the session's counter shows what the row expects, however it got there."""

    reverify_mode = "unsupported"

    async def seed_session(self, row: SeedRow, session: Session) -> None:
        session.state["value"] = row.start_value

    @tool
    async def read(self, session: Session) -> dict[str, int]:
        """Say what the counter shows."""
        return {"value": _value_of(session)}

    @tool
    async def increment(self, amount: Amount, session: Session) -> dict[str, int]:
        """Add to the counter; answers with what it shows then."""
        return _set_value(session, _value_of(session) + amount.by)

    @tool
    async def decrement(self, amount: Amount, session: Session) -> dict[str, int]:
        """Take away from the counter, which may go below zero; answers with what it shows then."""
        return _set_value(session, _value_of(session) - amount.by)

    @tool
    async def reset(self, session: Session) -> dict[str, int]:
        """Set the counter to zero."""
        return _set_value(session, 0)

    async def verify(self, row: Row, session: Session) -> dict[str, Any]:
        value = _value_of(session)
        if value == row.expected_value:
            return {"reward": 1.0, "differences": []}
        return {"reward": 0.0, "differences": [f"the counter shows {value}; expected {row.expected_value}"]}


def _value_of(session: Session) -> int:
    if "value" not in session.state:
        raise RequestError(409, "no_session", "this session has no counter; /seed_session comes first")
    return int(session.state["value"])


def _set_value(session: Session, value: int) -> dict[str, int]:
    session.state["value"] = value
    return {"value": value}


if __name__ == "__main__":
    raise SystemExit(run_server(Counter))
