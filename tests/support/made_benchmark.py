"""Benchmarks made on the fly, in a folder that a test owns."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

# Writes the rows it is given; told where to write.
ROWS_SCRIPT = """
    import json
    from pathlib import Path

    ROWS = {rows!r}

    def prepare(output_path):
        output_path.write_text("".join(json.dumps(row) + "\\n" for row in ROWS))
        return output_path
"""


@dataclass(frozen=True)
class MadeBenchmark:
    """A benchmark under ``root/benchmarks/name``."""

    root: Path
    name: str

    @property
    def folder(self) -> Path:
        return self.root / "benchmarks" / self.name

    @property
    def script(self) -> Path:
        return self.folder / "prepare.py"

    @property
    def data_file(self) -> Path:
        return self.folder / "data" / f"{self.name}.jsonl"

    @property
    def config_file(self) -> Path:
        return self.folder / "config.yaml"

    def write_script(self, source: str) -> None:
        self.script.write_text(textwrap.dedent(source), encoding="utf-8")

    def write_data(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self.data_file.parent.mkdir(exist_ok=True)
        self.data_file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

    def leftovers(self) -> list[str]:
        """What stands in the data folder besides the data file and the lock."""
        if not self.data_file.parent.is_dir():
            return []
        known = {self.data_file.name, f".{self.data_file.name}.lock"}
        return sorted(path.name for path in self.data_file.parent.iterdir() if path.name not in known)


def make_benchmark(
    root: Path,
    name: str = "demo",
    *,
    script: str | None = None,
    rows: Iterable[Mapping[str, Any]] | None = None,
    prompt: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    **dataset: Any,
) -> MadeBenchmark:
    """A benchmark whose script writes ``rows``, or is ``script``; ``dataset`` adds keys to its data set."""
    made = MadeBenchmark(root, name)
    made.folder.mkdir(parents=True, exist_ok=True)
    entry: dict[str, Any] = {
        "name": name,
        "type": "benchmark",
        "jsonl_fpath": f"benchmarks/{name}/data/{name}.jsonl",
        "prepare_script": f"benchmarks/{name}/prepare.py",
        **dataset,
    }
    if rows is not None:
        script = ROWS_SCRIPT.format(rows=list(rows))
    if script is not None:
        made.write_script(script)
    if prompt is not None:
        (made.folder / "prompt.yaml").write_text(yaml.safe_dump(dict(prompt)), encoding="utf-8")
        entry["prompt_config"] = f"benchmarks/{name}/prompt.yaml"
    agent = {"simple_agent": {"entrypoint": "app.py", "datasets": [entry]}}
    content = {f"{name}_agent": {"responses_api_agents": agent}, **(config or {})}
    made.config_file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    return made


def asks(question: str, /, **more: Any) -> dict[str, Any]:
    """A row that is ready to be asked."""
    return {"responses_create_params": {"input": question}, **more}
