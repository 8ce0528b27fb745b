"""Records read back from a registry: typed, with every reason why there are none; and kept beside a run's results."""

from __future__ import annotations

import asyncio
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config.config_types import BaseServerConfig
from nemo_gym.environment import TaskRunner
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.records import RecordCollector, RecordedRollout, RolloutRecord, parse_record
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Outcome
from nemo_gym.rollouts.run import Attempt
from tests.unit.fake_gym import FakeGym, make_row

RECORD = {
    "time": "2026-11-29T10:00:00.000001+00:00", "rollout_id": "r1", "server": "policy_model", "kind": "model_call",
    "method": "POST", "path": "/v1/responses", "status": 200, "duration_s": 0.5, "model": "m",
    "usage": {"input_tokens": 3, "output_tokens": 4}, "request": {"input": "q"}, "request_bytes": 13,
    "response": {"output": []}, "response_bytes": 13, "endpoint_failures": ["busy"],
}  # fmt: skip
LISTED = {"rollouts": [{"rollout_id": "r1", "time": "2026-11-29T10:00:00.000001+00:00"}], "unasked": {}}
MINIMAL = ("time", "rollout_id", "server", "kind", "method", "path", "status", "duration_s")


def gathered(*records: dict[str, Any], **unasked: str) -> tuple[int, Any]:
    return 200, {"rollout_id": "r1", "records": list(records), "unasked": unasked}


def error(kind: str, message: str) -> tuple[int, Any]:
    return 404, {"error": {"type": kind, "message": message}}


class TestRecord:
    def test_fields(self) -> None:
        record = parse_record({**RECORD, "later": 1})
        assert (record.kind, record.status, record.duration_s) == ("model_call", 200, 0.5)
        assert record.usage == {"input_tokens": 3, "output_tokens": 4}
        assert record.endpoint_failures == ("busy",)
        assert record.more == {"later": 1}
        assert record.to_dict() == {**RECORD, "reward": None, "later": 1}

    def test_what_a_record_may_leave_out(self) -> None:
        record = parse_record({name: RECORD[name] for name in MINIMAL} | {"status": None})
        assert (record.status, record.request, record.response_bytes, record.usage) == (None, None, 0, None)


async def read(gym: FakeGym, rollout_id: str = "r1", token: str | None = None) -> list[RolloutRecord]:
    address = BaseServerConfig(host=gym.host, port=gym.port, token=token)
    async with TaskRunner([make_row("t")], registry_server=address) as runner:
        return await runner.rollout_records(rollout_id)


class TestTaskRunner:
    async def test_records_of_a_rollout(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO")
        answers = {"r1": gathered(RECORD, {**RECORD, "server": "b"}, theirs="it keeps no records (HTTP 404)")}
        async with FakeGym(records_of=lambda rollout_id: answers[rollout_id], token="t") as gym:
            found = await read(gym, token="t")
        assert [record.server for record in found] == ["policy_model", "b"]
        assert "no records of server theirs: it keeps no records (HTTP 404)" in caplog.messages

    @pytest.mark.parametrize(
        ("answer", "said"),
        [
            (error("observability_off", "x"), "Start them with observability_enabled=true"),
            (error("no_records", "nothing is known of rollout r1; did you mean r10?"), "did you mean r10"),
            ((404, "no route"), "gives no records: it answered HTTP 404."),
            ((502, {"error": {"type": "nobody_answers", "message": "a: gone"}}), "it answered HTTP 502: a: gone."),
            ((200, {"records": "none"}), "gives no records: it answered HTTP 200"),
            ((200, {"records": [{"time": 1}]}), "gives records that are none: .*missing"),
            ((200, {"records": ["x"]}), "gives records that are none: "),
        ],
    )
    async def test_why_there_are_none(self, answer: tuple[int, Any], said: str) -> None:
        async with FakeGym(records_of=lambda rollout_id: answer) as gym:
            with pytest.raises(ConfigError, match=said):
                await read(gym)

    async def test_a_wrong_token_a_wrong_id_and_nobody_there(self) -> None:
        async with FakeGym(token="t") as gym:
            with pytest.raises(ConfigError, match=r"refuses the token that was sent.*NEMO_GYM_TOKEN"):
                await read(gym, token="wrong")
            with pytest.raises(ConfigError, match="A rollout id must start with a letter"):
                await read(gym, "../r1")
        with pytest.raises(ConfigError, match="cannot be asked for records: no connection"):
            await read(gym)


async def test_rollouts_are_listed() -> None:
    async with FakeGym(records_of=lambda rollout_id: (200, LISTED)) as gym:
        helper = RolloutCollectionHelper()
        found = await helper.load_recorded_rollouts(RegistryAddress(gym.host, gym.port))
    assert found == [RecordedRollout("r1", "2026-11-29T10:00:00.000001+00:00")]


def attempt(rollout_id: str) -> Attempt:
    return Attempt(make_row("t", _ng_rollout_id=rollout_id), 0, Outcome(), 1.0, final=True)


class TestCollector:
    async def test_each_record_is_a_line_and_each_rollouts_stand_together(self, tmp_path: Path) -> None:
        def two(rollout_id: str) -> tuple[int, Any]:
            return gathered(*({**RECORD, "rollout_id": rollout_id, "said": f"ü\n{n}"} for n in range(2)))

        async with FakeGym(records_of=two) as gym:
            address = RegistryAddress(gym.host, gym.port)
            async with RecordCollector(RolloutCollectionHelper(), address, tmp_path / "x_records.jsonl") as collector:
                for number in range(20):
                    collector.add(attempt(f"r{number}"))
        lines = [json.loads(line) for line in (tmp_path / "x_records.jsonl").read_text().splitlines()]
        ids = [line["rollout_id"] for line in lines]
        assert sorted(ids[::2]) == sorted(f"r{number}" for number in range(20))
        assert ids[::2] == ids[1::2]
        assert lines[0] == {**RECORD, "rollout_id": ids[0], "reward": None, "said": "ü\n0"}

    async def test_what_cannot_be_read_is_told_once_and_costs_nothing_else(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        async with FakeGym(records_of=lambda i: gathered(RECORD) if i == "r1" else error("no_records", "no")) as gym:
            address = RegistryAddress(gym.host, gym.port)
            async with RecordCollector(RolloutCollectionHelper(), address, tmp_path / "x") as collector:
                for rollout_id in ("r0", "r1", "r2", "r3"):
                    collector.add(attempt(rollout_id))
        assert len((tmp_path / "x").read_text().splitlines()) == 1
        first, last = [record.getMessage() for record in caplog.records]
        assert first.startswith("no records of rollout r")
        assert last == f"of 3 attempts in all there are no records in {tmp_path / 'x'}"

    async def test_a_run_that_is_given_up_waits_for_no_record(self, tmp_path: Path) -> None:
        reading = asyncio.Event()

        class Slow(RolloutCollectionHelper):
            async def load_records(self, registry: RegistryAddress, rollout_id: str) -> Any:
                reading.set()
                await asyncio.sleep(60)

        async def give_up() -> None:
            async with RecordCollector(Slow(), RegistryAddress("127.0.0.1", 1), tmp_path / "x") as collector:
                collector.add(attempt("r0"))
                await reading.wait()
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(give_up(), timeout=5)
        assert (tmp_path / "x").read_text() == ""

    async def test_a_full_disk_costs_the_records_and_nothing_else(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Full(io.BytesIO):
            def write(self, _: Any) -> int:
                raise OSError(28, "No space left on device")

            def close(self) -> None:
                if not self.closed:
                    super().close()
                    raise OSError(28, "No space left on device")

        async with FakeGym(records_of=lambda i: gathered(RECORD)) as gym:
            address = RegistryAddress(gym.host, gym.port)
            async with RecordCollector(RolloutCollectionHelper(), address, tmp_path / "x") as collector:
                collector._close()
                collector._file = Full()
                for rollout_id in ("r0", "r1"):
                    collector.add(attempt(rollout_id))
        first, last = [record.getMessage() for record in caplog.records]
        assert re.fullmatch(r"no records of rollout r. in .*/x: .*No space left on device", first)
        assert last.startswith("of 2 attempts in all there are no records")
