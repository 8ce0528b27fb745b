from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.rollouts.journal import Journal, Key, encoded_line, mend_last_line, read_lines

RECORDS = [{"n": 0, "text": "a"}, {"n": 1, "text": 'ü\n"}'}, {"n": 2, "text": "\ud800", "more": {"x": [1, 2]}}]


def written(path: Path, records: list[dict[str, object]]) -> bytes:
    path.write_bytes(b"".join(map(encoded_line, records)))
    return path.read_bytes()


def records_in(path: Path) -> list[dict[str, object]]:
    return [line.record for line in read_lines(path)]


class TestMending:
    def test_a_file_cut_at_any_byte_keeps_every_whole_line_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        whole = written(path, RECORDS)
        ends = [n + 1 for n, byte in enumerate(whole) if byte == ord("\n")]
        assert len(ends) == 3
        for cut in range(len(whole) + 1):
            path.write_bytes(whole[:cut])
            removed = mend_last_line(path)
            # a line that lacks nothing but its end of line is whole
            kept = sum(1 for end in ends if cut >= end - 1)
            assert records_in(path) == RECORDS[:kept], cut
            assert path.read_bytes() == whole[: ends[kept - 1] if kept else 0]
            assert removed == max(0, cut - (ends[kept - 1] if kept else 0))
            assert mend_last_line(path) == 0

    def test_lines_longer_than_a_block(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        long = [{"n": 0, "text": "x" * 200_000}, {"n": 1, "text": "y" * 200_000}]
        whole = written(path, long)
        path.write_bytes(whole[:-5])
        assert mend_last_line(path) == 200_000 + len(b'{"n":1,"text":""}\n') - 5
        assert records_in(path) == long[:1]
        path.write_bytes(whole[:150_000])
        assert mend_last_line(path) == 150_000
        assert path.read_bytes() == b""

    def test_what_a_crash_of_the_machine_leaves(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        whole = written(path, RECORDS)
        path.write_bytes(whole + b"\0" * 5000)
        assert mend_last_line(path) == 5000
        assert path.read_bytes() == whole

    def test_no_file(self, tmp_path: Path) -> None:
        assert mend_last_line(tmp_path / "x.jsonl") == 0

    @pytest.mark.parametrize("line", [b"nonsense\n", b"[1]\n", b"\n", b"\xff\n"])
    def test_a_line_that_is_none_is_named(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "x.jsonl"
        path.write_bytes(encoded_line(RECORDS[0]) + line)
        with pytest.raises(ConfigError, match=r"x\.jsonl, line 2: needed a JSON object"):
            records_in(path)


class TestJournal:
    def test_lines_are_there_at_once_and_in_order_at_the_end(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        journal = Journal(path)
        for n in (2, 0, 10, 1):
            journal.add((n,), {"n": n})
            assert json.loads(path.read_bytes().splitlines()[-1]) == {"n": n}
        journal.finish()
        assert [record["n"] for record in records_in(path)] == [0, 1, 2, 10]
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_in_order_is_left_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        journal = Journal(path)
        journal.add((1,), {"n": 1})
        journal.add((2,), {"n": 2})
        before = path.stat().st_ino
        journal.finish()
        assert path.stat().st_ino == before

    def test_lines_of_earlier_stay_and_what_does_not_count_goes(self, tmp_path: Path) -> None:
        path = tmp_path / "x.jsonl"
        written(path, [{"n": 3}, {"n": 3}, {"n": 1}])
        lines = list(read_lines(path))
        counting: list[tuple[Key, int, int]] = [
            ((line.record["n"],), line.place, line.length) for line in (lines[0], lines[2])
        ]
        journal = Journal(path, counting)
        journal.add((2,), {"n": 2})
        journal.finish()
        assert [record["n"] for record in records_in(path)] == [1, 2, 3]

    def test_a_full_disk_is_told_and_costs_nothing_that_was_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "x.jsonl"
        journal = Journal(path)
        journal.add((1,), {"n": 1})
        write = os.write

        def fills_up(file: int, data: bytes) -> int:
            if len(data) < 5:
                raise OSError(28, "No space left on device")
            return write(file, data[:5])

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", fills_up)
            with pytest.raises(NemoGymError, match=r"x\.jsonl: No space left on device.*--resume"):
                journal.add((0,), {"n": 0})
        assert path.read_bytes() == b'{"n":1}\n'  # and no part of the other
        journal.finish()
        assert records_in(path) == [{"n": 1}]

    def test_no_room_to_put_a_file_in_order(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "x.jsonl"
        journal = Journal(path)
        for n in (2, 1):
            journal.add((n,), {"n": n})
        before = path.read_bytes()

        def full(file: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(NemoGymError, match=r"cannot put .*x\.jsonl in order: No space left on device\."):
            journal.finish()
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]
