"""A resources server as small as one with session state is: what the chain's rollouts are verified by."""

from __future__ import annotations

import hashlib
import sys
import time
from typing import Any

from nemo_gym.servers.messages import RunRequest, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, Session


class Counter(ResourcesServer):
    """Rewards a rollout whose session it has seeded."""

    async def seed_session(self, row: RunRequest, session: Session) -> None:
        session.state["seeded"] = True

    async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
        return {"reward": float(session.state.get("seeded", False) and "42" in row.text())}


class CostlyRow(VerifyRequest):
    """How often its verification hashes, and for how long it holds its process without using a CPU."""

    hashes: int = 0
    holds_s: float = 0.0


class Costly(ResourcesServer):
    """Stateless, and as long in a verification as a row says: what several workers are for."""

    async def verify(self, row: CostlyRow) -> dict[str, Any]:
        digest = row.text().encode()
        for _ in range(row.hashes):
            digest = hashlib.sha256(digest).digest()
        time.sleep(row.holds_s)  # noqa: ASYNC251 - as work on a CPU of its own would
        return {"reward": 1.0, "digest": digest.hex()}


if __name__ == "__main__":
    raise SystemExit(run_server(Costly if sys.argv[1:] == ["costly"] else Counter))
