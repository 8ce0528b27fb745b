"""The results of a verification that was repeated, as a run of its own beside the one it was made from."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.provenance import now_utc
from nemo_gym.rollouts.results import ResultPaths

_KEPT = ("materialized_inputs", "plan", "config", "image_lock")


def begin_reverified_files(source: ResultPaths, output: ResultPaths) -> None:
    """Put beside results to come what stands beside those they are made from; what stands there is removed.

    With the inputs there from the start, results that were cut off show that some are missing.
    """
    output.clear()
    for part in _KEPT:
        path = getattr(source, part)
        if path.is_file():
            shutil.copyfile(path, getattr(output, part))


def finish_reverified_files(
    source: ResultPaths, output: ResultPaths, *, command: Sequence[str], images: Mapping[str, str], counts: Any
) -> None:
    """Take over the failures of ``source``, whose rollouts have no result to verify, and write the new record.

    ``images`` are those that the verifiers ran from, which the lock file, of the rollouts' own servers, need not hold.
    """
    if source.failures.is_file():
        content = source.failures.read_bytes()
        if content and not content.endswith(b"\n"):
            content = content[: content.rfind(b"\n") + 1]
        output.failures.write_bytes(content + output.failures.read_bytes())
    if source.run.is_file():
        _write_record(source, output, command, images, counts)


def _write_record(
    source: ResultPaths, output: ResultPaths, command: Sequence[str], images: Mapping[str, str], counts: Any
) -> None:
    try:
        record = json.loads(source.run.read_bytes())
        earlier = record.get("reverified", [])
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{source.run} is no record of a run ({error}).") from error
    entry = {
        "time": now_utc(),
        "from": str(source.rollouts),
        "command": list(command),
        "images": dict(images),
        **counts,
    }
    text = json.dumps({**record, "reverified": [*earlier, entry]}, indent=2, ensure_ascii=False) + "\n"
    output.run.write_text(text, encoding="utf-8", errors="backslashreplace")
