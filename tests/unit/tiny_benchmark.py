"""A benchmark of three tasks, in a search root of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


def write_tiny_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write it to ``mine`` and make ``work`` the working directory, which is returned."""
    tiny = tmp_path / "mine" / "benchmarks" / "tiny"
    tiny.mkdir(parents=True)
    (tiny / "config.yaml").write_text(
        """
tiny_verifier:
  resources_servers: {mcqa: {entrypoint: app.py, domain: math, description: Three questions.}}
tiny_agent:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server: {type: resources_servers, name: tiny_verifier}
      model_server: {type: responses_api_models, name: policy_model}
      datasets:
        - name: tiny
          type: benchmark
          jsonl_fpath: benchmarks/tiny/rows.jsonl
          prepare_script: benchmarks/tiny/prepare.py
""",
        encoding="utf-8",
    )
    (tiny / "prepare.py").write_text(
        """
import json
from pathlib import Path

def prepare(output_path):
    rows = [{"task_id": f"t{n}", "responses_create_params": {"input": f"question {n}"}} for n in range(3)]
    Path(output_path).write_text("".join(json.dumps(row) + "\\n" for row in rows))
    return output_path
""",
        encoding="utf-8",
    )
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setenv("NEMO_GYM_EXTRA_ROOTS", str(tmp_path / "mine"))
    return work
