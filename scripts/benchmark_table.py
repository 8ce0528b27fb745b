"""Runs every benchmark in containers with the embedded model, and writes the table of results in benchmarks/README.md.

Small benchmarks are run whole, of the others the first tasks. What has been run is not run again while its results are
there (``results/benchmarks``), so that a run that was stopped goes on; ``--again`` starts anew. A benchmark that was
never run here keeps what the table says of it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "benchmarks" / "README.md"
RESULTS = ROOT / "results" / "benchmarks"
BEGIN = "<!-- The table is written by scripts/benchmarks. -->"
END = "<!-- End of the table. -->"

MODEL_TYPE = "llama_cpp_model"
MOST_WORKERS = 4  # of the embedded model's server
SMALL = 100
FEW = 50
# A small model that has lost its way writes on until it is stopped: an answer longer than this is cut.
MOST_TOKENS = 256
# What does not fit into 4096 tokens together with its answer. The embedded model takes no more than this.
CONTEXT = dict.fromkeys(("arc_agi_1", "arc_agi_2", "workplace"), 8192)
# All its prompts begin with the same 4,000 tokens: a worker that keeps what it read last reads them once.
SAME_BEGINNING = frozenset({"workplace"})
# The flavor that stands for a benchmark that is nothing but flavors.
SHOWN_AS = {"reasoning_gym": "reasoning_gym/chain_sum"}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these; the others keep their lines")
    parser.add_argument("--again", action="store_true", help="run what has results, too")
    parser.add_argument("--tasks", type=int, metavar="N", help="so many of each, whatever its size")
    parser.add_argument("--table-only", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    entries = gym_json("list", "benchmarks")
    unknown = set(arguments.names) - {entry["name"] for entry in entries}
    if unknown:
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; `gym list benchmarks` lists them")
    failed = []
    for entry in [] if arguments.table_only else entries:
        if arguments.names and entry["name"] not in arguments.names:
            continue
        if arguments.again or not summary_of(entry["name"]).is_file():
            failed += [] if run(entry, arguments.tasks or tasks_of(entry)) else [entry["name"]]
    write_table(entries)
    if failed:
        say(f"Without results: {', '.join(failed)}")
    return 1 if failed else 0


def run(entry: dict[str, Any], tasks: int) -> bool:
    """Run the first ``tasks`` of one benchmark and keep its figures; False when it has none."""
    name = entry["name"]
    output = RESULTS / f"{name}.jsonl"
    output.parent.mkdir(parents=True, exist_ok=True)
    say(f"{name}, {tasks} of {entry['num_rows']} tasks")
    begun = time.monotonic()
    command = ["eval", "run", "--benchmark", SHOWN_AS.get(name, name), "--model-type", MODEL_TYPE, "--json"]
    # As many at a time as the model server has workers here, so that a rollout's time holds no waiting for one.
    command += ["--limit", str(tasks), "--concurrency", str(min(os.cpu_count() or 1, MOST_WORKERS))]
    command += ["--output", str(output), "--overwrite", *overrides_of(name)]
    done = gym(*command)
    if not done.stdout.strip():
        return False
    figures = json.loads(done.stdout)
    image = gym_json("images", "list", "--benchmark", SHOWN_AS.get(name, name), "--model-type", MODEL_TYPE)
    kept = {key: figures[key] for key in ("rollouts", "mean_reward", "mean_reward_interval_95", "tokens", "latency_s")}
    kept["images"] = {one["name"]: one["size_bytes"] for one in image}
    kept["seconds"] = round(time.monotonic() - begun, 1)
    summary_of(name).write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    return True


def overrides_of(name: str) -> list[str]:
    """What differs from the benchmark's own settings, so that a small model on a CPU comes to an end."""
    most = gym_json("env", "resolve", "--benchmark", SHOWN_AS.get(name, name), "--model-type", MODEL_TYPE)
    asked = [
        dataset.get("responses_create_params", {}).get("max_output_tokens")
        for server in most.values()
        if isinstance(server, dict)
        for agent in server.get("responses_api_agents", {}).values()
        for dataset in agent.get("datasets") or []
    ]
    overrides = []
    if any(limit is None or limit > MOST_TOKENS for limit in asked):
        overrides.append(f"++responses_create_params.max_output_tokens={MOST_TOKENS}")
    settings = f"++policy_model.responses_api_models.{MODEL_TYPE}"
    if name in CONTEXT:
        overrides.append(f"{settings}.context_size={CONTEXT[name]}")
    if name in SAME_BEGINNING:
        overrides.append(f"{settings}.default_params.cache_prompt=true")
    return overrides


def tasks_of(entry: dict[str, Any]) -> int:
    rows = int(entry["num_rows"])
    return rows if rows <= SMALL else FEW


def summary_of(name: str) -> Path:
    return RESULTS / f"{name}.summary.json"


def row_of(entry: dict[str, Any], table: Mapping[str, Sequence[str]]) -> list[str]:
    name = entry["name"]
    shown = [f"[`{name}`]({name}/README.md)", entry["domain"], f"{entry['num_rows'] or 0:,}", ", ".join(entry["needs"])]
    if not summary_of(name).is_file():
        return [*shown, *table.get(shown[0], [""] * len(HEADS))[len(shown) :]]
    figures = json.loads(summary_of(name).read_text(encoding="utf-8"))
    rollouts, interval = figures["rollouts"], figures["mean_reward_interval_95"]
    mean = "" if figures["mean_reward"] is None else f"{figures['mean_reward']:.3f}"
    if interval:
        mean += f" ({interval[0]:.2f} to {interval[1]:.2f})"
    tasks = f"{rollouts['scored']}" + (f" and {rollouts['failed']} failed" if rollouts["failed"] else "")
    tokens = figures["tokens"]
    per_rollout = [round(tokens.get(f"{side}_tokens", 0) / max(1, rollouts["scored"])) for side in ("input", "output")]
    sizes = [size for key, size in figures["images"].items() if key.startswith("resources_servers/") and size]
    size = ", ".join(f"{round(bytes_ / 1e6)} MB" for bytes_ in sizes)
    seconds = figures["latency_s"].get("p50")
    time_taken = "" if seconds is None else f"{seconds:.1f} s"
    return [*shown, tasks, mean, f"{per_rollout[0]:,} / {per_rollout[1]:,}", time_taken, size]


HEADS = [
    "Benchmark",
    "Domain",
    "Rows",
    "Needs",
    "Tasks run",
    "Mean reward",
    "Tokens in / out",
    "Time (median)",
    "Image",
]


def write_table(entries: Sequence[dict[str, Any]]) -> None:
    """Put the table between its two marks."""
    text = README.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    earlier, _, after = rest.partition(END)
    table = {cells[0]: cells for cells in map(cells_of, earlier.strip().splitlines())}
    rows = [row_of(entry, table) for entry in entries]
    lines = ["| " + " | ".join(cells) + " |" for cells in [HEADS, ["---"] * len(HEADS), *rows]]
    README.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]), encoding="utf-8")
    say(f"The table stands in {README.relative_to(ROOT)}")


def cells_of(line: str) -> list[str]:
    return line.strip().removeprefix("| ").removesuffix(" |").split(" | ")


def gym(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nemo_gym", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)


def gym_json(*arguments: str) -> Any:
    done = gym(*arguments, "--json")
    if done.returncode:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


def say(text: str) -> None:
    sys.stderr.write(f"== {text}\n")


if __name__ == "__main__":
    raise SystemExit(main())
