"""Writes the rows of reasoning_gym: puzzles that one of the generators of reasoning-gym makes from a seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nemo_gym.environment.prepared_rows import write_rows

# With "composite", which mixes others, there is nothing that a flavor for each generator does not say better.
LEFT_OUT = frozenset({"composite"})


def prepare(
    output_path: Path, generator: str, size: int = 100, seed: int = 42, parameters: Mapping[str, Any] | None = None
) -> Path:
    """Write ``size`` puzzles of ``generator`` to ``output_path``; ``parameters`` are those of its config class.

    The puzzles are made in a process of their own, in which the order of sets of texts is fixed: some generators go
    through such sets, and would make others each time.
    """
    request = json.dumps({"generator": generator, "size": size, "seed": seed, "parameters": dict(parameters or {})})
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, __file__, str(output_path)]
    made = subprocess.run(command, input=request, env=environment, capture_output=True, text=True, check=False)
    if made.returncode:
        raise ValueError(made.stderr.strip()[-2000:] or f"generating ended with exit code {made.returncode}")
    return output_path


def rows_of(generator: str, size: int, seed: int, parameters: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The rows of one generator. ``ValueError`` when there is no such one, or its parameters are wrong."""
    from reasoning_gym.factory import DATASETS, create_dataset

    known = sorted(DATASETS.keys() - LEFT_OUT)
    if generator not in known:
        raise ValueError(f"needed: a generator of reasoning-gym; found {generator!r}. There are: {', '.join(known)}")
    try:
        puzzles = create_dataset(generator, size=size, seed=seed, **parameters)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"{generator} does not take size={size}, seed={seed}, {dict(parameters)}: {error}") from None
    for index in range(size):
        puzzle = puzzles[index]
        yield {
            "task_id": f"{generator}-{seed}-{index:04}",
            "question": puzzle["question"],
            "answer": puzzle["answer"],
            "generator": generator,
            "parameters": dict(parameters),
            "metadata": puzzle["metadata"],
        }


def main() -> int:
    """What ``prepare`` starts: a request on stdin, the file to write as the argument."""
    try:
        write_rows(Path(sys.argv[1]), rows_of(**json.load(sys.stdin)))
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
