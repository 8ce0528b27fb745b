"""Running prepare scripts: what they get, what must come back, and that nothing half-written is left."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest

from nemo_gym.config import ConfigError
from nemo_gym.config.process_config import process_config
from nemo_gym.config.resolve import load_config
from nemo_gym.environment import benchmark_preparation as preparation
from nemo_gym.environment import plan_benchmark
from nemo_gym.environment.benchmark_preparation import (
    PreparationFailedError,
    PrepareBenchmarkConfig,
    datasets_to_prepare,
    parse_prepare_config,
    prepare_datasets,
)
from nemo_gym.environment.benchmarks import BenchmarkConfig
from nemo_gym.environment.data_lock import exclusive, lock_file, open_prepared
from nemo_gym.environment.prepare_process import PrepareRun, prepare_run
from tests.support.made_benchmark import MadeBenchmark, asks, make_benchmark

pytestmark = pytest.mark.usefixtures("root")

GOOD = [asks("before")]
FOLDER = 'from pathlib import Path\nOUT = Path(__file__).parent / "data" / "demo.jsonl"\n'


def datasets(*made: MadeBenchmark, **overrides: Any) -> list[BenchmarkConfig]:
    return datasets_to_prepare(load_config([one.config_file for one in made], overrides, serving=False))


def prepare(*made: MadeBenchmark, **settings: Any) -> None:
    prepare_datasets(datasets(*made), PrepareBenchmarkConfig(**settings))


def test_the_failure_pickles_and_says_what_where_and_why() -> None:
    error = pickle.loads(pickle.dumps(PreparationFailedError("benchmarks.demo.prepare", "prepare", "no luck")))
    assert type(error) is PreparationFailedError
    assert isinstance(error, RuntimeError)
    assert str(error) == "The preparation of benchmarks.demo.prepare failed (prepare): no luck"
    assert (error.module, error.action, error.reason) == error._init_args
    assert error._init_args == ("benchmarks.demo.prepare", "prepare", "no luck")
    assert (error.kind, error.stop_exit_code, PreparationFailedError.stop_exit_code) == ("preparation_failed", 76, 76)


def raise_failure() -> None:
    raise PreparationFailedError("m", "prepare", "r")


def test_the_failure_crosses_process_boundaries() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(PreparationFailedError, match="m failed"):
        pool.apply(raise_failure)


def test_benchmark_data_sets_and_others_with_a_script_are_prepared(root: Path) -> None:
    train = {"name": "train", "type": "train", "jsonl_fpath": "data/train.jsonl"}
    made = make_benchmark(root, rows=GOOD, config={
        "trainer": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py", "datasets": [
            train, {**train, "name": "made", "prepare_script": "benchmarks/demo/prepare.py"}]}}},
    })  # fmt: skip
    found = datasets(made)
    assert [(one.name, one.agent_name, one.is_benchmark) for one in found] == [
        ("demo", "demo_agent", True),
        ("made", "trainer", False),
    ]
    assert found[0].path == made.config_file
    assert (found[0].root, found[0].data_file, found[0].script_file) == (root, made.data_file, made.script)


def test_two_benchmark_data_sets_of_one_agent_are_refused(root: Path) -> None:
    made = make_benchmark(root, rows=GOOD)
    config = load_config([made.config_file], serving=False)
    agent = config.demo_agent.responses_api_agents.simple_agent
    agent.datasets.append({**agent.datasets[0], "name": "second"})
    with pytest.raises(ConfigError, match=r"has 2 entries of type benchmark \(demo, second\)"):
        datasets_to_prepare(config)


def test_a_script_may_know_its_path_itself(root: Path) -> None:
    made = make_benchmark(
        root,
        script=FOLDER
        + """
def prepare():
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text('{"responses_create_params": {"input": "mine"}}')
    return OUT
""",
    )
    made.write_data(GOOD)
    prepare(made)
    assert "mine" in made.data_file.read_text()
    assert made.leftovers() == []


def test_a_script_may_import_what_stands_beside_it_and_by_its_full_name(root: Path) -> None:
    made = make_benchmark(
        root,
        script="""
            import sys
            from beside import TEXT
            from benchmarks.demo import beside

            assert __name__ == "benchmarks.demo.prepare" and sys.argv == [__file__], (__name__, sys.argv)
            assert sys.stdin.read() == ""

            def prepare(output_path):
                output_path.write_text(TEXT)
                return str(output_path)
        """,
    )
    (made.folder / "beside.py").write_text("TEXT = '{}'\n")
    prepare(made)
    assert made.data_file.read_text() == "{}"


ARGS_SCRIPT = """
    import json

    def prepare(output_path, split="test", *, source=None, limit: int = 3):
        output_path.write_text(json.dumps([split, source, limit]))
        return output_path
"""


def test_script_arguments_arrive_and_paths_arrive_as_text(root: Path) -> None:
    made = make_benchmark(root, script=ARGS_SCRIPT)
    prepare(made, prepare_script_args={"source": {"a": [Path("/x/y")]}, "limit": 9})
    assert json.loads(made.data_file.read_text()) == ["test", {"a": ["/x/y"]}, 9]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"splitt": "x"}, "has 'splitt', which .* does not take; it takes limit, source, split. Did you mean 'split'"),
        ({"source": {1, 2}}, "prepare_script_args.source: a prepare script cannot be given a set"),
        ({"source": object()}, "cannot be given a object"),
        ({"source": float("nan")}, "prepare_script_args.source: "),
    ],
)
def test_arguments_that_cannot_be_passed_are_refused(root: Path, args: dict[str, Any], message: str) -> None:
    made = make_benchmark(root, script=ARGS_SCRIPT)
    with pytest.raises(ConfigError, match=message):
        prepare(made, prepare_script_args=args)
    assert not made.data_file.exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (None, "prepare.py does not exist"),
        ("x = 1", "defines no function `prepare`"),
        ("def prepare(:", r"prepare.py, line 1 is not valid Python"),
        ("def prepare(output_path, needed): ...", "needs prepare_script_args for needed"),
    ],
)
def test_everything_is_validated_before_anything_runs(root: Path, script: str | None, message: str) -> None:
    fine = make_benchmark(root, "fine", rows=GOOD)
    broken = make_benchmark(root, "broken", script=script)
    with pytest.raises(ConfigError, match=r"(?s)Nothing was prepared.*broken: .*" + message):
        prepare(fine, broken)
    assert not fine.data_file.exists()


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ({"usr": "{question}"}, "unknown key 'usr'. It takes 'user' and 'system'. Did you mean 'user'?"),
        ({"user": "{question"}, "expected '}' before end of string"),
        (None, "its prompt_config .*gone.yaml does not exist"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_told_before_anything_runs(
    root: Path, prompt: dict[str, str] | None, message: str
) -> None:
    more = {"prompt": prompt} if prompt is not None else {"prompt_config": "gone.yaml"}
    made = make_benchmark(root, rows=GOOD, **more)
    with pytest.raises(ConfigError, match=r"(?s)Nothing was prepared.*demo: .*" + message):
        prepare(made)
    with pytest.raises(ConfigError, match=message):
        plan_benchmark("demo")
    assert not made.data_file.exists()


def test_a_benchmark_without_a_script_needs_its_data(root: Path) -> None:
    made = make_benchmark(root, prepare_script=None)
    with pytest.raises(ConfigError, match=r"there is no .*demo.jsonl, and the data set has no prepare_script"):
        prepare(made)
    made.write_data(GOOD)
    assert plan_benchmark("demo").task_ids() == ["0"]


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", r"demo_agent\.datasets\[0\] is not valid: jsonl_fpath: String should have at least 1 character"),
        ("benchmarks/demo", r"demo: its jsonl_fpath .*/benchmarks/demo is a folder"),
        ("~no.such.user/x.jsonl", r"jsonl_fpath of demo is '~no\.such\.user/x\.jsonl', and there is no user"),
    ],
)
def test_a_data_file_that_cannot_be_is_told_before_anything_runs(
    root: Path, path: str, message: str, script: bool
) -> None:
    more = {} if script else {"prepare_script": None}
    make_benchmark(root, script="raise AssertionError('run')", jsonl_fpath=path, **more)
    before = sorted(root.rglob("*"))
    with pytest.raises(ConfigError, match=message):
        plan_benchmark("demo")
    assert sorted(root.rglob("*")) == before


@pytest.mark.parametrize("setting", ["cache_dir", "uv_venv_dir"])
def test_a_home_that_is_not_there_is_told_with_the_setting(root: Path, setting: str) -> None:
    make_benchmark(root, rows=GOOD)
    with pytest.raises(ConfigError, match=f"^{setting} is '~no.such.user/x', and there is no user 'no.such.user'"):
        plan_benchmark("demo", overrides={setting: "~no.such.user/x"})


def test_two_scripts_for_one_file_are_refused(root: Path) -> None:
    one = make_benchmark(root, "one", rows=GOOD, jsonl_fpath="data/x.jsonl")
    two = make_benchmark(root, "two", rows=GOOD, jsonl_fpath="data/x.jsonl")
    with pytest.raises(ConfigError, match="one and two both write"):
        prepare(one, two)


def test_another_path_than_the_configured_one_is_refused(root: Path, tmp_path: Path) -> None:
    made = make_benchmark(
        root,
        script=f"""
            from pathlib import Path

            def prepare():
                path = Path({str(tmp_path / "elsewhere.jsonl")!r})
                path.write_text("{{}}")
                return path
        """,
    )
    made.write_data(GOOD)
    before = made.data_file.read_bytes()
    with pytest.raises(ConfigError, match=r"wrote .*elsewhere.jsonl, but the config's jsonl_fpath is .*demo.jsonl"):
        prepare(made)
    assert made.data_file.read_bytes() == before
    assert made.leftovers() == []


HALF = "output_path.write_text('{\"half\": '); "
FAILURES = [
    ("raise ValueError('bad row')", "ValueError: bad row"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("import os; os._exit(0)", "ended with exit code 0 before it was done"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", r"killed by SIGKILL \(which is what the system does"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "killed by SIGSEGV"),
    ("import time; time.sleep(60)", r"did not end within 0.7 s and was ended. .*prepare_timeout_s"),
    ("return None", "must return the path of the file it wrote; it returned None"),
    ("output_path.write_text(''); return output_path", "wrote an empty file"),
    ("output_path.unlink(); return output_path", "but wrote no such file"),
    ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
]


@pytest.mark.parametrize("in_place", [False, True], ids=["staged", "in-place"])
@pytest.mark.parametrize("earlier", [False, True], ids=["fresh", "again"])
@pytest.mark.parametrize(("end", "reason"), FAILURES, ids=[reason[:20] for _, reason in FAILURES])
def test_a_script_that_fails_leaves_nothing_half_written(
    root: Path, end: str, reason: str, in_place: bool, earlier: bool
) -> None:
    parameters = "" if in_place else "output_path"
    where = "output_path = OUT; OUT.parent.mkdir(exist_ok=True); " if in_place else ""
    made = make_benchmark(root, script=f"{FOLDER}\ndef prepare({parameters}):\n    {where}{HALF}{end}\n")
    if earlier:
        made.write_data(GOOD)
    with pytest.raises(PreparationFailedError, match=reason) as caught:
        prepare(made, prepare_timeout_s=0.7 if "sleep" in end else 60)
    assert caught.value.module == "benchmarks.demo.prepare"
    assert caught.value.action == "prepare"
    assert made.data_file.exists() == earlier
    assert not earlier or json.loads(made.data_file.read_text()) == GOOD[0]
    assert made.leftovers() == []


def test_the_reason_has_the_traceback_and_no_secret(root: Path) -> None:
    made = make_benchmark(root, script="def prepare():\n    raise ValueError('token hf_abcd${gh123456 refused')\n")
    config = load_config([made.config_file], {"hf_token": r"hf_abcd\${gh123456"}, serving=False)
    with process_config(config), pytest.raises(PreparationFailedError) as caught:
        prepare_datasets(datasets_to_prepare(config), PrepareBenchmarkConfig())
    assert "prepare.py" in caught.value.reason
    assert "line 2, in prepare" in caught.value.reason
    assert "prepare_child" not in caught.value.reason
    assert "gh123456" not in str(caught.value)


def test_an_error_of_this_package_says_all_there_is_to_say(root: Path) -> None:
    made = make_benchmark(
        root,
        script="""
            from nemo_gym.environment.downloads import download

            def prepare(output_path):
                return download("ftp://data.example/rows.jsonl", sha256="0" * 64)
        """,
    )
    with pytest.raises(PreparationFailedError) as caught:
        prepare(made)
    assert caught.value.reason == (
        "ConfigError: download() needs an http or https address; found 'ftp://data.example/rows.jsonl'."
    )


def test_standard_output_stays_visible_and_apart_from_the_result(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = make_benchmark(
        root,
        script="""
            import subprocess, sys

            def prepare(output_path):
                print("from the script")
                print("and its errors", file=sys.stderr)
                subprocess.run(["echo", "from a program"], check=True)
                output_path.write_text("{}")
                return output_path
        """,
    )
    prepare(made)
    captured = capfd.readouterr()
    assert captured.out == "from the script\nfrom a program\n"
    assert "and its errors" in captured.err


def test_what_a_script_started_ends_with_it_at_the_time_limit(root: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    made = make_benchmark(
        root,
        script=f"""
            import subprocess, time

            def prepare(output_path):
                process = subprocess.Popen(["sleep", "60"])
                with open({str(pid_file)!r}, "w") as file:
                    file.write(str(process.pid))
                time.sleep(60)
        """,
    )
    with pytest.raises(PreparationFailedError, match="did not end within"):
        prepare(made, prepare_timeout_s=1.5)
    wait_until_gone(int(pid_file.read_text()))


def test_what_a_script_leaves_running_ends_when_it_has_written_its_rows(root: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    made = make_benchmark(
        root,
        script=f"""
            import subprocess

            def prepare(output_path):
                process = subprocess.Popen(["sleep", "60"])
                with open({str(pid_file)!r}, "w") as file:
                    file.write(str(process.pid))
                output_path.write_text('{{"responses_create_params": {{"input": "x"}}}}')
                return output_path
        """,
    )
    prepare(made)
    assert made.data_file.is_file()
    wait_until_gone(int(pid_file.read_text()))


def wait_until_gone(pid: int, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        try:
            status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if status == "Z":
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} is still there")


def start_planning(root: Path, pid_file: Path) -> subprocess.Popen[bytes]:
    """A process that plans the benchmark `demo`, whose script has written its process id when this returns."""
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # may be inherited as ignored
        "from nemo_gym.environment import plan_benchmark; plan_benchmark('demo')\n"
    )
    temporary = pid_file.with_name("temporary")
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=root, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.monotonic() + 20
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return caller


@pytest.mark.parametrize("in_place", [False, True], ids=["staged", "in-place"])
def test_a_caller_that_is_killed_leaves_no_script_and_no_half_written_file(
    root: Path, tmp_path: Path, in_place: bool
) -> None:
    pid_file = tmp_path / "pid"
    where = "output_path = OUT; OUT.parent.mkdir(exist_ok=True)" if in_place else "pass"
    made = make_benchmark(
        root,
        script=f"""{FOLDER}
import os, time
def prepare({"" if in_place else "output_path"}):
    {where}
    output_path.write_text('half')
    Path({str(pid_file)!r}).write_text(str(os.getpid()))
    time.sleep(60)
""",
    )
    made.write_data(GOOD)
    caller = start_planning(root, pid_file)
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    wait_until_gone(int(pid_file.read_text()))
    assert list(tmp_path.joinpath("temporary").iterdir()) == []
    assert not made.data_file.exists() or json.loads(made.data_file.read_text()) == GOOD[0]
    if in_place:
        with (
            pytest.raises(ConfigError, match="is incomplete: its preparation was cut off"),
            open_prepared(made.data_file),
        ):
            pass
    make_benchmark(root, script="def prepare(output_path): raise ValueError\n")
    with pytest.raises(PreparationFailedError):
        prepare(made)
    assert json.loads(made.data_file.read_text()) == GOOD[0]
    assert made.leftovers() == []


def test_an_interrupted_caller_ends_the_script_and_keeps_the_earlier_file(root: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    made = make_benchmark(
        root,
        script=f"""
            import os, time
            from pathlib import Path

            def prepare(output_path):
                output_path.write_text("half")
                Path({str(pid_file)!r}).write_text(str(os.getpid()))
                time.sleep(60)
        """,
    )
    made.write_data(GOOD)
    caller = start_planning(root, pid_file)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(20) != 0
    wait_until_gone(int(pid_file.read_text()))
    assert json.loads(made.data_file.read_text()) == GOOD[0]
    assert made.leftovers() == []


def start_preparing(root: Path, at_once: int, *names: str, before: str = "") -> subprocess.Popen[bytes]:
    """A process that prepares several benchmarks, and writes what it logs to the file ``log`` beside ``root``."""
    code = f"""
import logging, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
logging.basicConfig(level=logging.INFO, filename="../log")
from nemo_gym.config.resolve import load_config
from nemo_gym.environment.benchmark_preparation import *
{before}
config = load_config([f"benchmarks/{{name}}/config.yaml" for name in {names}], serving=False)
prepare_datasets(datasets_to_prepare(config), PrepareBenchmarkConfig(num_prepare_benchmark_processes={at_once}))
"""
    return subprocess.Popen([sys.executable, "-c", code], cwd=root)


def wait_for_text(path: Path, text: str = "", timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text() and text in path.read_text()):
        assert time.monotonic() < deadline, f"{path} does not hold {text!r}"
        time.sleep(0.02)


LONG_SCRIPT = """
    import os, time
    from pathlib import Path

    def prepare(output_path):
        Path({pid_file!r}).write_text(str(os.getpid()))
        time.sleep(60)
"""


def test_an_interrupt_ends_several_scripts_at_once(root: Path, tmp_path: Path) -> None:
    pid_files = [tmp_path / "one", tmp_path / "two"]
    for pid_file in pid_files:
        make_benchmark(root, pid_file.name, script=LONG_SCRIPT.format(pid_file=str(pid_file)))
    caller = start_preparing(root, 2, "one", "two")
    for pid_file in pid_files:
        wait_for_text(pid_file)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(20) != 0
    for pid_file in pid_files:
        wait_until_gone(int(pid_file.read_text()))


def test_an_interrupt_ends_the_wait_for_what_another_process_prepares(root: Path, tmp_path: Path) -> None:
    one = make_benchmark(root, "one", script=LONG_SCRIPT.format(pid_file=str(tmp_path / "one")))
    two = make_benchmark(root, "two", script=LONG_SCRIPT.format(pid_file=str(tmp_path / "two")))
    with exclusive(lock_file(two.data_file), "it"):
        caller = start_preparing(root, 2, "one", "two")
        wait_for_text(tmp_path / "one")
        wait_for_text(tmp_path / "log", "Waiting for another process that is busy with the preparation of two")
        caller.send_signal(signal.SIGINT)
        assert caller.wait(20) != 0
    wait_until_gone(int((tmp_path / "one").read_text()))
    assert not (tmp_path / "two").exists()
    assert one.leftovers() == two.leftovers() == []


@pytest.mark.parametrize("names", [("two",), ("one", "two")], ids=["alone", "beside-another"])
def test_an_interrupt_ends_what_makes_an_environment(root: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    make_benchmark(root, "one", script=LONG_SCRIPT.format(pid_file=str(tmp_path / "one")))
    two = make_benchmark(root, "two", script=COUNTING)
    for name in ("pyproject.toml", "uv.lock"):
        (two.folder / name).touch()
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\nsleep 60 &\necho $! > {tmp_path / 'two'}\nwait\n")
    uv.chmod(0o755)
    before = f"from nemo_gym.environment import prepare_environment as made; made._uv = lambda: {str(uv)!r}"
    caller = start_preparing(root, 2, *names, before=before)
    for name in names:
        wait_for_text(tmp_path / name)
    caller.send_signal(signal.SIGINT)
    assert caller.wait(20) != 0
    for name in names:
        wait_until_gone(int((tmp_path / name).read_text()))
    assert runs(two) == 0


def test_what_begins_after_an_interrupt_is_ended_at_once(root: Path) -> None:
    made = make_benchmark(root, script=COUNTING)
    run = PrepareRun(stopped=threading.Event())
    run.stop()
    with prepare_run(run), pytest.raises(CancelledError):
        prepare(made)
    assert run.processes == []
    assert runs(made) == 0
    assert made.leftovers() == []


COUNTING = """
    from pathlib import Path
    LOG = Path(__file__).with_name("log.txt")

    def prepare(output_path):
        with LOG.open("a") as log:
            log.write("x")
        output_path.write_text("{}")
        return output_path
"""


def runs(made: MadeBenchmark) -> int:
    log = made.folder / "log.txt"
    return len(log.read_text()) if log.exists() else 0


def test_prepared_data_is_reused_only_when_asked_for(root: Path) -> None:
    made = make_benchmark(root, script=COUNTING)
    prepare(made, use_cached_prepared_benchmarks=True)
    prepare(made, use_cached_prepared_benchmarks=True)
    assert runs(made) == 1
    prepare(made)
    assert runs(made) == 2
    made.data_file.write_text("")
    prepare(made, use_cached_prepared_benchmarks=True)
    assert runs(made) == 3


def test_the_script_itself_may_say_that_prepared_data_is_out_of_date(root: Path) -> None:
    made = make_benchmark(root)
    made.write_script(COUNTING.replace("LOG =", "from pathlib import Path\n    LOG =") + """
    def is_prepared_data_current(path):
        return path.read_text() == "{}"
""")  # fmt: skip
    prepare(made, use_cached_prepared_benchmarks=True)
    prepare(made, use_cached_prepared_benchmarks=True)
    assert runs(made) == 1
    made.data_file.write_text("{} ")
    prepare(made, use_cached_prepared_benchmarks=True)
    assert runs(made) == 2


def test_a_currency_check_that_fails_is_a_failed_preparation(root: Path) -> None:
    made = make_benchmark(root, script="def prepare(output_path): ...\ndef is_prepared_data_current(path): 1 / 0\n")
    made.write_data(GOOD)
    with pytest.raises(PreparationFailedError, match=r"failed \(is_prepared_data_current\): ZeroDivisionError"):
        prepare(made, use_cached_prepared_benchmarks=True)
    assert json.loads(made.data_file.read_text()) == GOOD[0]


def test_several_data_sets_are_prepared_at_a_time(root: Path, tmp_path: Path) -> None:
    # Each waits for the other: they can only both succeed when they run side by side.
    meeting = """
        import time
        from pathlib import Path

        def prepare(output_path):
            Path({mine!r}).touch()
            deadline = time.monotonic() + 20
            while not Path({other!r}).exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            output_path.write_text("{{}}")
            return output_path
    """
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    one = make_benchmark(root, "one", script=meeting.format(mine=a, other=b))
    two = make_benchmark(root, "two", script=meeting.format(mine=b, other=a))
    prepare(one, two, num_prepare_benchmark_processes=2)
    assert one.data_file.exists()
    assert two.data_file.exists()


def test_of_several_that_fail_the_first_is_raised_and_the_rest_is_not_begun(root: Path) -> None:
    made = [make_benchmark(root, f"b{number}", script="def prepare(output_path): 1 / 0\n") for number in range(4)]
    with pytest.raises(PreparationFailedError, match=r"benchmarks.b[01].prepare failed"):
        prepare(*made, num_prepare_benchmark_processes=2)


def test_two_processes_that_prepare_the_same_data_do_not_collide(root: Path) -> None:
    make_benchmark(
        root,
        script=FOLDER
        + """
import json, os, time
def prepare():
    OUT.parent.mkdir(exist_ok=True)
    with OUT.open("x") as output:  # fails when another preparation is going on
        for number in range(20):
            output.write(json.dumps({"responses_create_params": {"input": str(os.getpid())}}) + "\\n")
            output.flush()
            time.sleep(0.01)
    return OUT
""",
    )
    code = (
        "from nemo_gym.environment import plan_benchmark\n"
        "rows = plan_benchmark('demo').rows\n"
        "assert len(rows) == 20 and len({row['responses_create_params']['input'] for row in rows}) == 1\n"
    )
    callers = [subprocess.Popen([sys.executable, "-c", code], cwd=root) for _ in range(3)]
    assert [caller.wait(60) for caller in callers] == [0, 0, 0]


def test_readers_wait_for_a_preparation_that_is_going_on(root: Path, tmp_path: Path) -> None:
    data_file = tmp_path / "x.jsonl"
    data_file.write_text("{}")
    code = (
        "import sys; from pathlib import Path\n"
        "from nemo_gym.environment.data_lock import open_prepared\n"
        "with open_prepared(Path(sys.argv[1])) as stream: print(stream.read().decode())\n"
    )
    with exclusive(lock_file(data_file), "a test"):
        reader = subprocess.Popen([sys.executable, "-c", code, str(data_file)], stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            reader.wait(0.7)
        data_file.write_text("complete")
    assert reader.communicate(timeout=20)[0] == "complete\n"


def test_prepared_data_may_stand_where_nothing_can_be_written(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_benchmark(root, script="def prepare(output_path): 1 / 0\n")
    made.write_data(GOOD)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    prepare(made, use_cached_prepared_benchmarks=True)
    assert [path.name for path in made.data_file.parent.iterdir()] == ["demo.jsonl"]


def test_a_data_folder_that_cannot_be_made_is_a_config_error(root: Path) -> None:
    made = make_benchmark(root, rows=GOOD, jsonl_fpath="file/x.jsonl")
    (root / "file").write_text("")
    with pytest.raises(ConfigError, match=r"Cannot write to .*file, which is needed for the preparation of demo"):
        prepare(made)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_prepare_benchmark_processes": 0}, "num_prepare_benchmark_processes"),
        ({"prepare_script_args": [1]}, "prepare_script_args"),
        ({"prepare_timeout_s": -1}, "prepare_timeout_s"),
    ],
)
def test_settings_that_cannot_be_are_config_errors(root: Path, settings: dict[str, Any], message: str) -> None:
    make_benchmark(root, rows=GOOD)
    with pytest.raises(ConfigError, match=message):
        plan_benchmark("demo", overrides=settings)


def test_environments_of_scripts_lie_in_the_configured_cache(root: Path, tmp_path: Path) -> None:
    assert parse_prepare_config({}).uv_venv_dir == tmp_path / "cache" / "venvs"
    assert parse_prepare_config({"cache_dir": "/elsewhere"}).uv_venv_dir == Path("/elsewhere/venvs")
    assert parse_prepare_config({"cache_dir": "/elsewhere", "uv_venv_dir": "/v"}).uv_venv_dir == Path("/v")
    assert parse_prepare_config({"uv_venv_dir": "./~v"}).uv_venv_dir == Path.cwd() / "~v"
    assert parse_prepare_config({"cache_dir": "./~c"}).uv_venv_dir == Path.cwd() / "~c" / "venvs"
    assert parse_prepare_config({"cache_dir": "~/elsewhere"}).uv_venv_dir == Path.home() / "elsewhere" / "venvs"


def test_the_setting_is_read_from_the_config(root: Path) -> None:
    make_benchmark(root, script="import time\ndef prepare(output_path): time.sleep(60)\n")
    with pytest.raises(PreparationFailedError, match=r"within 0.5 s"):
        plan_benchmark("demo", overrides={"prepare_timeout_s": 0.5})
    assert parse_prepare_config({"prepare_timeout_s": None}).prepare_timeout_s is None


def test_an_installed_benchmark_writes_to_the_cache_directory(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make_benchmark(root, rows=GOOD)
    monkeypatch.setattr("nemo_gym.environment.benchmarks.is_package_data", lambda folder: folder == root)
    relative = Path("benchmarks/demo/data/demo.jsonl")
    plan_benchmark("demo")
    assert (tmp_path / "cache" / relative).exists()
    plan_benchmark("demo", overrides={"cache_dir": str(tmp_path / "other")})
    assert (tmp_path / "other" / relative).exists()
    assert not made.data_file.exists()


def test_paths_are_relative_to_the_checkout_when_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nemo_gym.environment.benchmarks.install_root", lambda: tmp_path)
    inside = tmp_path / "benchmarks" / "x" / "config.yaml"
    assert preparation.gym_relative_path(str(inside)) == "benchmarks/x/config.yaml"
    assert preparation.gym_relative_path("/somewhere/else.yaml") == "/somewhere/else.yaml"


def test_the_texts_of_a_plain_dict_stand_for_themselves(root: Path) -> None:
    made = make_benchmark(
        root,
        script="""
            from nemo_gym.config.process_config import get_process_config

            def prepare(output_path):
                output_path.write_text(get_process_config().note)
                return output_path
        """,
    )
    module, config = "benchmarks.demo.prepare", {"note": "${HOME} and \\\\${x}"}
    preparation._run_isolated_prepare(Path(sys.executable), module, "prepare", made.data_file, {}, config)
    assert made.data_file.read_text() == config["note"]
    assert config == {"note": "${HOME} and \\\\${x}"}


def test_a_script_can_be_run_by_its_dotted_name_alone(root: Path) -> None:
    made = make_benchmark(root, rows=GOOD)
    python = Path(sys.executable)
    module = "benchmarks.demo.prepare"
    result = preparation._run_isolated_prepare(python, module, "prepare", made.data_file, {})
    assert result == {"output": str(made.data_file)}
    assert preparation._run_isolated_prepare(python, module, "is_prepared_data_current", made.data_file, {}) == {
        "current": True
    }
    with pytest.raises(ConfigError, match="There is no prepare script"):
        preparation._run_isolated_prepare(python, "benchmarks.nothing.prepare", "prepare", made.data_file, {})
    with pytest.raises(PreparationFailedError, match="cannot be started"):
        preparation._run_isolated_prepare(root / "no-python", module, "prepare", made.data_file, {})
    with pytest.raises(TypeError, match="set"):
        preparation._prepare_json_default({1})
    assert preparation._prepare_json_default(Path("a/b")) == "a/b"
