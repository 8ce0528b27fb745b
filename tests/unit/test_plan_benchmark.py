"""plan_benchmark and PlannedBenchmark: what they return, and that nothing else in the process changes."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import nemo_gym.environment as environment
from nemo_gym.cli.planning import prepare_and_collate
from nemo_gym.config import ConfigError
from nemo_gym.config.process_config import get_process_config, process_config
from nemo_gym.config.resolve import load_config
from nemo_gym.environment import EvalPlan, PlannedBenchmark, in_process, plan_benchmark
from nemo_gym.environment.benchmark_preparation import (
    PreparationFailedError,
    PrepareBenchmarkConfig,
    parse_prepare_config,
    plan_for_config,
)
from nemo_gym.environment.collated_files import read_task_ids
from tests.support.made_benchmark import MadeBenchmark, asks, make_benchmark

pytestmark = pytest.mark.usefixtures("root")

AGENT = {"type": "responses_api_agents", "name": "demo_agent"}
CONFIG_SCRIPT = """
    import json
    from nemo_gym.config.process_config import get_process_config

    def prepare(output_path):
        config = get_process_config()
        row = {"responses_create_params": {"input": config.style.name}, "count": config.style.count}
        output_path.write_text(json.dumps(row) + "\\n")
        return output_path
"""


@pytest.fixture
def demo(root: Path) -> MadeBenchmark:
    return make_benchmark(root, rows=[asks("a", task_id="x"), asks("b"), asks("c", task_id="y")])


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories of this process are made."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_the_package_exports_six_names_and_import_does_nothing() -> None:
    names = ["EvalPlan", "PlannedBenchmark", "TaskResult", "TaskRunner", "plan_benchmark", "serve_benchmark"]
    assert environment.__all__ == names == dir(environment)
    code = (
        "import os, sys, threading\n"
        "before = dict(os.environ)\n"
        "import nemo_gym.environment\n"
        "assert dict(os.environ) == before and threading.active_count() == 1\n"
        "heavy = {'docker', 'aiohttp', 'pydantic', 'omegaconf', 'yaml', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "nemo_gym.environment.plan_benchmark\n"
        "heavy = {'docker', 'aiohttp', 'pydantic', 'omegaconf'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_plan_and_rows_of_a_prepared_benchmark(demo: MadeBenchmark) -> None:
    planned = plan_benchmark("demo")
    assert planned.task_ids() == ["1", "x", "y"]
    assert [task.task_id.task_id for task in planned.plan.tasks] == ["1", "x", "y"]
    assert {task.task_id.taskset for task in planned.plan.tasks} == {"demo"}
    assert planned.rows == [
        {**asks("a", task_id="x"), "agent_ref": AGENT, "_ng_task_index": 0, "_ng_rollout_index": 0},
        {**asks("b"), "agent_ref": AGENT, "_ng_task_index": 1, "_ng_rollout_index": 0},
        {**asks("c", task_id="y"), "agent_ref": AGENT, "_ng_task_index": 2, "_ng_rollout_index": 0},
    ]
    assert planned.plan.benchmark.name == "demo"
    assert planned.plan.benchmark.config_paths == (str(demo.config_file),)
    assert planned.plan.selected_task_ids is None
    assert planned.gym_commit == planned.plan.gym.commit
    assert planned.task_digests() == {task.task_id.task_id: task.input_digest for task in planned.plan.tasks}


def test_gym_eval_plan_gives_the_same_bytes(demo: MadeBenchmark) -> None:
    config = load_config([demo.config_file], serving=False)
    for task_ids in (None, ["y", "x"]):
        plan = plan_for_config(config, parse_prepare_config(config), task_ids)
        assert plan.to_json() == plan_benchmark("demo", task_ids=task_ids).plan.to_json()


def test_json_round_trip_is_exact(demo: MadeBenchmark) -> None:
    planned = plan_benchmark("demo")
    text = planned.to_json()
    assert PlannedBenchmark.from_json(text) == planned
    assert PlannedBenchmark.from_json(text).to_json() == text
    assert PlannedBenchmark.from_json(json.dumps(json.loads(text), indent=2)) == planned
    assert json.loads(text)["rows"] == planned.rows


def test_json_keeps_numbers_and_texts_that_other_readers_lose(demo: MadeBenchmark) -> None:
    plan = plan_benchmark("demo").plan
    rows: list[dict[str, Any]] = [{"n": 2**80, "x": 1e-7, "t": 'ä\u2028\n\x00 ,"rows":[ ', "d": {"e": []}}, {}]
    for kept in (rows, []):
        assert PlannedBenchmark.from_json(PlannedBenchmark(plan, kept).to_json()) == PlannedBenchmark(plan, kept)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no planned benchmark"),
        ("[]", "keys 'plan' and 'rows'"),
        ('{"plan":{}}', "keys 'plan' and 'rows'"),
        ('{"plan":{},"rows":[]}', "the plan lacks"),
        ('{"plan":\n{},"rows":[\n{\n]}\n', "no planned benchmark"),
        ("[" * 300 + "]" * 300, "no planned benchmark: it is nested too deeply"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PlannedBenchmark.from_json(text)


def test_rows_that_would_read_back_as_others_are_refused(demo: MadeBenchmark) -> None:
    planned = plan_benchmark("demo")
    planned.rows[1]["weight"] = float("nan")
    with pytest.raises(ConfigError, match=r"rows\[1\] cannot be written as JSON: Out of range float values"):
        planned.to_json()


def test_rows_that_are_no_objects_are_refused(demo: MadeBenchmark) -> None:
    text = PlannedBenchmark(plan_benchmark("demo").plan, []).to_json().replace('"rows":[\n', '"rows":[\n3')
    with pytest.raises(ConfigError, match=r"rows\[0\] must be an object; found int"):
        PlannedBenchmark.from_json(text)


def test_selection_keeps_the_ids_and_digests_of_the_whole(demo: MadeBenchmark) -> None:
    whole, some = plan_benchmark("demo"), plan_benchmark("demo", task_ids=["y", "1", "y"])
    assert some.plan.selected_task_ids == ("1", "y")
    assert some.task_digests() == {key: whole.task_digests()[key] for key in ("1", "y")}
    assert some.rows == whole.rows[1:]


@pytest.mark.parametrize(
    ("task_ids", "message"),
    [
        (["x", "z1", "yy"], r"No task with the id 'yy' \(nearest: 'y'\), 'z1' \(nearest: '1'\), among 3 tasks"),
        ([], "The selection of tasks is empty"),
        ("x", r"task_ids must be a list of ids; found the text 'x'. Write \['x'\]"),
        ([1], "A task id is a text; found 1. Write '1'"),
        (5, r"task_ids must be a list of ids; found 5. Write \['5'\]"),
    ],
)
def test_selections_that_select_nothing_are_refused(demo: MadeBenchmark, task_ids: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_benchmark("demo", task_ids=task_ids)
    config = load_config([demo.config_file], serving=False)
    known_before_anything_runs = not isinstance(task_ids, list) or len(task_ids) < 2
    if known_before_anything_runs:
        demo.write_script("def prepare():\n    raise AssertionError('run')\n")
    with pytest.raises(ConfigError, match=message):
        plan_for_config(config, PrepareBenchmarkConfig(), task_ids)


@pytest.mark.parametrize("once", [iter, lambda ids: map(str, ids), lambda ids: (one for one in ids)])
def test_what_gives_its_ids_once_selects_too(demo: MadeBenchmark, once: Any) -> None:
    ids = ["y", "x"]
    config = load_config([demo.config_file], serving=False)
    assert plan_benchmark("demo", task_ids=once(ids)).task_ids() == ["x", "y"]
    assert plan_for_config(config, PrepareBenchmarkConfig(), once(ids)).selected_task_ids == ("x", "y")
    assert prepare_and_collate(config, once(ids), keep_rows=False).selected_task_ids == ["x", "y"]
    with pytest.raises(ConfigError, match="No task with the id 'z'"):
        plan_benchmark("demo", task_ids=once(["z"]))


def test_task_ids_are_read_from_a_file_one_a_line(tmp_path: Path) -> None:
    listed = tmp_path / "ids.txt"
    listed.write_text("# chosen by hand\n x \n\n1\n")
    assert read_task_ids(listed) == ["x", "1"]
    listed.write_text("\n")
    with pytest.raises(ConfigError, match="holds no task id"):
        read_task_ids(listed)
    with pytest.raises(ConfigError, match="Cannot read the task ids"):
        read_task_ids(tmp_path / "none.txt")


def test_num_repeats_repeats_each_row_and_leaves_the_plan_alone(root: Path) -> None:
    rows = [asks("a"), asks("b")]
    make_benchmark(root, "once", rows=rows)
    make_benchmark(root, "thrice", rows=rows, num_repeats=3)
    planned = plan_benchmark("thrice")
    assert [(row["_ng_task_index"], row["_ng_rollout_index"]) for row in planned.rows] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)
    ]  # fmt: skip
    assert len(planned.plan.tasks) == 2


def test_editing_a_prompt_changes_digests_and_no_ids(root: Path) -> None:
    made = make_benchmark(root, rows=[{"q": "a"}, {"q": "b"}], prompt={"user": "{q}"})
    before = plan_benchmark("demo")
    (made.folder / "prompt.yaml").write_text("user: '{q}!'\n")
    after = plan_benchmark("demo")
    assert before.task_ids() == after.task_ids() == ["0", "1"]
    assert not set(before.task_digests().values()) & set(after.task_digests().values())


def test_a_digest_changes_only_for_the_task_whose_input_changes(root: Path) -> None:
    rows = [asks("a"), asks("b")]
    make_benchmark(root, rows=rows)
    before = plan_benchmark("demo").task_digests()
    make_benchmark(root, rows=[rows[0], asks("B")], num_repeats=2)
    after = plan_benchmark("demo").task_digests()
    assert before["0"] == after["0"]
    assert before["1"] != after["1"]


def test_request_parameters_can_be_set_for_all_rows(root: Path) -> None:
    make_benchmark(root, rows=[asks("a")], responses_create_params={"max_output_tokens": 5, "temperature": 0.0})
    planned = plan_benchmark("demo", overrides={"responses_create_params": {"max_output_tokens": 900}})
    assert planned.rows[0]["responses_create_params"] == {"input": "a", "max_output_tokens": 900, "temperature": 0.0}


def test_work_dir_receives_the_collated_files_and_survives(demo: MadeBenchmark, tmp_path: Path, scratch: Path) -> None:
    work_dir = tmp_path / "new" / "work"
    planned = plan_benchmark("demo", work_dir=work_dir)
    assert [path.name for path in work_dir.iterdir()] == ["demo.jsonl"]
    assert [json.loads(line) for line in (work_dir / "demo.jsonl").read_text().splitlines()] == planned.rows
    assert list(scratch.iterdir()) == []


def test_a_failure_leaves_no_half_written_collated_file(root: Path, tmp_path: Path, scratch: Path) -> None:
    make_benchmark(root, rows=[asks("a"), {"no": "input"}])
    for work_dir in (tmp_path / "work", None):
        with pytest.raises(ConfigError, match="line 2: the row has nothing to ask"):
            plan_benchmark("demo", work_dir=work_dir)
    assert list((tmp_path / "work").iterdir()) == []
    assert list(scratch.iterdir()) == []


def test_a_process_that_is_killed_while_it_collates_leaves_no_file(demo: MadeBenchmark, tmp_path: Path) -> None:
    code = """
import os, signal
from nemo_gym.environment import collated_files, plan_benchmark

whole = collated_files.collate

def killed(*args, **kwargs):
    yield next(whole(*args, **kwargs))
    os.kill(os.getpid(), signal.SIGKILL)

collated_files.collate = killed
plan_benchmark("demo")
"""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    before = sorted(path.name for path in tmp_path.iterdir())
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run([sys.executable, "-c", code], cwd=demo.root, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert list(temporary.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_work_dir_that_cannot_be_written_to_is_a_config_error(demo: MadeBenchmark, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Cannot write the collated rows"):
        plan_benchmark("demo", work_dir=tmp_path / "file")


@contextmanager
def nothing_changes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fails when the block changes what a library must leave alone."""
    monkeypatch.setattr(sys, "argv", ["gym", "++garbage=1", "--benchmark", "nonsense"])
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")

    def state() -> tuple[Any, ...]:
        handlers = logging.getLogger().handlers[:], logging.getLogger("nemo_gym").handlers[:]
        return dict(os.environ), Path.cwd(), sys.argv[:], sys.path[:], get_process_config(), handlers

    before = state()
    yield
    assert state() == before


def test_the_prepare_script_sees_the_overrides_and_the_process_stays_as_it_was(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_benchmark(root, script=CONFIG_SCRIPT, config={"style": {"name": "plain", "count": 1}})
    overrides = {"style": {"name": "fancy"}}
    with nothing_changes(monkeypatch):
        planned = plan_benchmark("demo", overrides=overrides)
    assert [(row["responses_create_params"]["input"], row["count"]) for row in planned.rows] == [("fancy", 1)]
    assert overrides == {"style": {"name": "fancy"}}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"costs \${ 5", "costs ${ 5"),
        (r"\${HOME}", "${HOME}"),
        (r"\\\${x}", r"\${x}"),
        (r"\\${style.count}", r"\1"),
        ("a\\b, $5 and {}", "a\\b, $5 and {}"),
    ],
)
def test_the_prepare_script_sees_texts_as_they_are_meant(root: Path, written: str, meant: str) -> None:
    make_benchmark(root, script=CONFIG_SCRIPT, config={"style": {"name": "plain", "count": 1}})
    planned = plan_benchmark("demo", overrides={"style": {"name": written}})
    assert planned.rows[0]["responses_create_params"]["input"] == meant


def test_whatever_a_prepare_script_does_to_its_process_stays_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_benchmark(
        root,
        script="""
            import logging, os, signal, sys

            def prepare():
                os.environ.clear()
                os.chdir("/")
                sys.argv[:] = ["changed"]
                sys.path.insert(0, "/nowhere")
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                logging.getLogger().addHandler(logging.NullHandler())
                raise ValueError("as planned")
        """,
    )
    with nothing_changes(monkeypatch), pytest.raises(PreparationFailedError, match="ValueError: as planned"):
        plan_benchmark("demo")


def test_a_configuration_that_is_in_force_is_in_force_afterwards(root: Path) -> None:
    made = make_benchmark(root, script=CONFIG_SCRIPT, config={"style": {"name": "plain", "count": 1}})
    served = load_config([made.config_file], {"style": {"count": 7}}, serving=False)
    with process_config(served, serving=True):
        assert plan_benchmark("demo").rows[0]["count"] == 1
        with pytest.raises(PreparationFailedError):
            plan_benchmark("demo", overrides={"style": None})
        assert get_process_config() is served
    assert get_process_config() is None


def test_threads_plan_at_once_each_with_its_own_overrides(root: Path) -> None:
    make_benchmark(root, script=CONFIG_SCRIPT, config={"style": {"name": "x", "count": 0}})

    def plan(count: int) -> int:
        return int(plan_benchmark("demo", overrides={"style": {"count": count}}).rows[0]["count"])

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(plan, range(8))) == list(range(8))


def test_unknown_names_and_dotted_keys_are_refused(demo: MadeBenchmark) -> None:
    with pytest.raises(ConfigError, match="Did you mean demo"):
        plan_benchmark("dmo")
    with pytest.raises(ConfigError, match=r"'style.name'.*dot"):
        plan_benchmark("demo", overrides={"style.name": "x"})
    with pytest.raises(ConfigError, match=r"'b.c'"):
        in_process._refuse_dotted_keys([{"a": [{"b.c": 1}]}])
    in_process._refuse_dotted_keys([{"a": [{"b": "c.d"}]}])


def test_flavors_are_further_config_files_nested_too(root: Path) -> None:
    made = make_benchmark(root, rows=[{"q": "a"}], prompt={"user": "{q}"})
    pulled_in = "config_paths: [benchmarks/demo/config.yaml]\n"
    (made.folder / "hard.yaml").write_text(pulled_in + "responses_create_params: {temperature: 1.0}\n")
    (made.folder / "sets" / "tiny").mkdir(parents=True)
    (made.folder / "sets" / "tiny" / "config.yaml").write_text(pulled_in + "responses_create_params: {top_p: 0.5}\n")
    assert plan_benchmark("demo/hard").rows[0]["responses_create_params"]["temperature"] == 1.0
    tiny = plan_benchmark("demo/sets/tiny")
    assert tiny.rows[0]["responses_create_params"]["top_p"] == 0.5
    assert tiny.plan.benchmark.name == "demo/sets/tiny"
    with pytest.raises(ConfigError, match="demo/hard"):
        plan_benchmark("demo/hrd")


def test_a_missing_prompt_config_is_named(root: Path) -> None:
    make_benchmark(root, rows=[{"q": "a"}], prompt_config="benchmarks/demo/none.yaml")
    with pytest.raises(ConfigError, match=r"prompt_config .*none.yaml does not exist"):
        plan_benchmark("demo")


def test_a_config_without_a_benchmark_or_with_two_is_refused(root: Path) -> None:
    (root / "other.yaml").write_text("a: 1\n")
    config = load_config([root / "other.yaml"], serving=False)
    with pytest.raises(ConfigError, match="declares no benchmark"):
        plan_for_config(config, parse_prepare_config(config))
    one, two = make_benchmark(root, "one", rows=[asks("a")]), make_benchmark(root, "two", rows=[asks("a")])
    config = load_config([one.config_file, two.config_file], serving=False)
    with pytest.raises(ConfigError, match=r"declares 2 benchmarks: one \(of one_agent\), two \(of two_agent\)"):
        plan_for_config(config, parse_prepare_config(config))


def test_rows_of_several_data_sets_are_counted_on(root: Path, tmp_path: Path) -> None:
    one, two = make_benchmark(root, "one"), make_benchmark(root, "two")
    one.write_data([asks("a"), asks("b")])
    two.write_data([asks("c")])
    rows = in_process._collated_rows(load_config([one.config_file, two.config_file], serving=False), tmp_path / "out")
    assert [(row["_ng_task_index"], row["agent_ref"]["name"]) for row in rows] == [
        (0, "one_agent"), (1, "one_agent"), (2, "two_agent")
    ]  # fmt: skip
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["one.jsonl", "two.jsonl"]


def test_an_empty_data_set_is_refused(root: Path, tmp_path: Path) -> None:
    made = make_benchmark(root)
    made.write_data([])
    with pytest.raises(ConfigError, match="'demo' has no rows"):
        in_process._collated_rows(load_config([made.config_file], serving=False), tmp_path / "out")


def test_planning_needs_no_endpoint_and_no_image(root: Path) -> None:
    config = {
        "policy_model": {"responses_api_models": {"openai_model": {"openai_base_url": "???"}}},
        "policy_base_url": "???",
        "checker": {"resources_servers": {"not_built_yet": {"entrypoint": "app.py", "domain": "math"}}},
    }
    make_benchmark(root, rows=[asks("a")], config=config)
    assert plan_benchmark("demo").task_ids() == ["0"]


def test_tasks_of_one_data_set_share_its_name_in_memory() -> None:
    entry = {"taskset": "demo", "task_id": ""}
    plan = {
        "schema": "nemo-gym.eval-plan.v1",
        "benchmark": {"name": "demo", "config_paths": []},
        "gym": {"commit": None},
        "selected_task_ids": None,
        "tasks": [{"task_id": {**entry, "task_id": str(n)}, "input_digest": "0" * 64} for n in range(10)],
    }
    parsed = EvalPlan.from_json(json.dumps(plan))
    assert len({id(task.task_id.taskset) for task in parsed.tasks}) == 1
