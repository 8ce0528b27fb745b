"""A resources server as small as one with session state is: what the chain's rollouts are verified by."""

from __future__ import annotations

import hashlib
from typing import Any

from nemo_gym.servers.messages import RunRequest, VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings, Session


class Counter(ResourcesServer):
    """Rewards a rollout whose session it has seeded."""

    async def seed_session(self, row: RunRequest, session: Session) -> None:
        session.state["seeded"] = True

    async def verify(self, row: VerifyRequest, session: Session) -> dict[str, Any]:
        return {"reward": float(session.state.get("seeded", False) and "42" in row.text())}


class HashingSettings(ResourcesSettings):
    """How often a verification hashes: what makes it as expensive as wanted."""

    hashes: int = 10_000


class Hashing(ResourcesServer):
    """Stateless, and nothing but work for the CPU: what several workers are for."""

    settings: HashingSettings

    async def verify(self, row: VerifyRequest) -> dict[str, Any]:
        digest = row.text().encode()
        for _ in range(self.settings.hashes):
            digest = hashlib.sha256(digest).digest()
        return {"reward": 1.0, "digest": digest.hex()}


if __name__ == "__main__":
    import sys

    raise SystemExit(run_server(Hashing if sys.argv[1:] == ["hashing"] else Counter))
