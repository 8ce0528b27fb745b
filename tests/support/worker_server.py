"""A stateless server that does to its processes what they must stand; run as a program."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.servers.logs import logger
from nemo_gym.servers.messages import VerifyRequest
from nemo_gym.servers.process import run_server
from nemo_gym.servers.resources import ResourcesServer, ResourcesSettings


class Settings(ResourcesSettings):
    """Its last worker starts when ``starts_with`` is there, and fails to when ``fails`` is set."""

    starts_with: Path | None = None
    fails: bool = False


class Row(VerifyRequest):
    """Seconds that a verification waits, or blocks its process for, and characters that it logs.

    ``begins`` is a file that it makes first.
    """

    begins: Path | None = None
    waits_s: float = 0.0
    blocks_s: float = 0.0
    logs: int = 0


class Workers(ResourcesServer):
    settings: Settings

    async def running(self) -> AsyncIterator[None]:
        if self.worker == self.worker_count - 1:
            while self.settings.starts_with is not None and not self.settings.starts_with.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if self.settings.fails:
                raise ConfigError("this worker cannot start")
        async for _ in super().running():
            yield

    async def verify(self, row: Row) -> dict[str, Any]:
        if row.begins is not None:
            row.begins.touch()
        await asyncio.sleep(row.waits_s)
        time.sleep(row.blocks_s)  # noqa: ASYNC251 - as a costly verification would
        if row.logs:
            logger.info("%s", "x" * row.logs)
        return {"reward": 1.0, "pid": os.getpid(), "worker": self.worker}


if __name__ == "__main__":
    raise SystemExit(run_server(Workers))
