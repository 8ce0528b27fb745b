from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nemo_gym
from nemo_gym.cli.main import main
from tests.support.stored_results import result, write_results
from tests.unit.tiny_benchmark import write_tiny_benchmark


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a benchmark of one's own in a folder beside it."""
    return write_tiny_benchmark(tmp_path, monkeypatch)


class TestHelp:
    def test_help_and_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == 0
        assert "gym eval run --benchmark" in capsys.readouterr().out
        assert main(["--version"]) == 0
        assert capsys.readouterr().out == f"gym {nemo_gym.__version__}\n"

    @pytest.mark.parametrize(
        "command",
        [
            ["list"],
            ["env", "start"],
            ["env", "status"],
            ["env", "logs"],
            ["env", "stop"],
            ["env", "resolve"],
            ["eval", "run"],
            ["eval", "plan"],
            ["new", "resources-server"],
            ["new", "benchmark"],
        ],
    )
    def test_every_command_has_help(self, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert main([*command, "--help"]) == 0
        assert capsys.readouterr().out.startswith("usage: gym " + " ".join(command))

    def test_help_imports_nothing_heavy(self) -> None:
        code = "import sys; from nemo_gym.cli.main import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        loaded = set(done.stderr.split())
        assert not loaded & {"asyncio", "aiohttp", "docker", "omegaconf", "pydantic", "rich", "tenacity", "yaml"}


def _denied_below(folder: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(path: Any, *arguments: Any, **options: Any) -> Any:
        if folder in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return function(path, *arguments, **options)

    return call


class TestUsageErrors:
    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ([], "COMMAND"),
            (["lst"], "no command 'lst': did you mean 'list'?"),
            (["zzz"], "no command 'zzz': there are list, env, eval"),
            (["eval", "rnu"], "did you mean 'run'?"),
            (["eval"], "COMMAND"),
            (["eval", "run", "--benchmark"], "expected one argument"),
            (["eval", "run", "--limit", "0", "--benchmark", "x"], "whole number from 1 on; found '0'"),
            (["eval", "run", "--concurrency", "many", "--benchmark", "x"], "found 'many'"),
            (["env", "start", "--registry-port", "70000", "--benchmark", "x"], "1 to 65535; found '70000'"),
            (["eval", "run", "--benchmrk", "x"], "Did you mean --benchmark?"),
            (["eval", "run", "--bench", "x"], "has no option --bench"),
            (["eval", "run", "--benchmark", "x", "stray"], "'stray'. A configuration key is set with key=value"),
            (["list", "models", "a", "b=c"], "does not know what to do with 'b=c'"),
            (["eval", "run"], "--benchmark NAME"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "a..b=1"], "a..b"),
            (["eval", "plan", "--benchmark", "truthfulqa_mc"], "truthfulqa_mc1"),
            (["eval", "plan", "--benchmark", "truthfulqa_mc1", "--task-ids", "a,,b"], "empty id"),
            (["eval", "plan", "--benchmark", "truthfulqa_mc1", "--task-ids", "@nowhere"], "nowhere"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "--model-type", "openai_modle"], "openai_model"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "--model", "m", "policy_model_name=n"], "one of them"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "--model-api-key", "env:NO_SUCH_KEY"], "NO_SUCH_KEY"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "--model-api-key", "@nowhere"], "nowhere"),
            (["list", "benchmarks", "truthfulqa"], "Did you mean truthfulqa_mc1?"),
            (["list", "models", "zzz"], "There are"),
            (["eval", "profile", "x.jsonl", "--sort", "mean"], "argument --sort: invalid choice: 'mean'"),
            (["eval", "profile", "x.jsonl", "--task-ids", "@~nosuch/ids"], "--task-ids @FILE is '~nosuch/ids', and"),
            (["eval", "run", "--benchmark", "truthfulqa_mc1", "--model-api-key", "@~nosuch/k"], "no user 'nosuch'"),
            (["new", "agent", "mine", "--directory", "~nosuch/x"], "no user 'nosuch'"),
            (["list", "models", "--search-dir", "~nosuch"], "no user 'nosuch'"),
            (["eval", "show", "x" * 300], "Cannot read xxx"),
            (["eval", "run", "--benchmark", "tiny", "--registry", "a..b:1"], "'http://a..b:1/ready' is not a URL"),
            (["eval", "run", "--benchmark", "tiny", "--output", ""], "ends in .jsonl, as results/x.jsonl; found ''"),
            (["eval", "run", "--benchmark", "tiny", "--output", "/"], "ends in .jsonl, as results/x.jsonl; found '/'"),
            (["eval", "run", "--benchmark", "tiny", "--output", "x.v2"], "ends in .jsonl"),
            (["eval", "run", "--benchmark", "tiny", "--output", "out/.jsonl"], "ends in .jsonl"),
            (["eval", "aggregate", "x.jsonl", "--output", "."], "ends in .jsonl, as results/x.jsonl; found '.'"),
            (["eval", "reverify", "x.jsonl", "--output", "x_failures.jsonl"], "must not end in _failures.jsonl"),
            (
                ["eval", "run", "--benchmark", "tiny", "--output", "x" * 240 + ".jsonl", "--registry", "a:1"],
                "xxx.jsonl: File name too long",
            ),
            (["eval", "plan", "--benchmark", "tiny", "--output", "."], "Cannot write .: needed the name of a file"),
            (["eval", "plan", "--benchmark", "tiny", "--output", "/dev/null/x"], "Cannot write /dev/null/x: "),
        ],
    )
    def test_they_exit_with_2_and_say_what_is_wrong(
        self, arguments: list[str], said: str, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_results(Path("x.jsonl"), [result(0, 0, 1.0)])
        assert main(arguments) == 2
        output = capsys.readouterr()
        assert said in output.err
        assert "Traceback" not in output.err
        assert output.out == ""

    def test_what_may_not_be_read_or_written_is_told(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_results(Path("x.jsonl"), [result(0, 0, 1.0)])
        Path("private").mkdir()
        for name in ("stat", "listdir", "scandir"):  # root may read everything
            monkeypatch.setattr(os, name, _denied_below("private", getattr(os, name)))
        for command in (
            ["show", "private"],
            ["profile", "private/x.jsonl"],
            ["aggregate", "x.jsonl", "--output", "private/y.jsonl"],
            ["run", "--benchmark", "tiny", "--registry", "127.0.0.1:1", "--output", "private/y.jsonl"],
        ):
            assert main(["eval", *command]) == 2, command
            assert re.match(r"gym: error: Cannot (read|write results to) private.*: Permission denied\.$",
                            capsys.readouterr().err)  # fmt: skip

    def test_an_error_of_the_system_that_nothing_else_tells_of(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object, **__: object) -> None:
            raise OSError(5, "Input/output error", "rows.jsonl")

        monkeypatch.setattr("nemo_gym.cli.eval.prepare_and_collate", fails)
        assert main(["eval", "plan", "--benchmark", "tiny"]) == 1
        assert capsys.readouterr().err.endswith("gym: failed: [Errno 5] Input/output error: 'rows.jsonl'\n")

    def test_serving_keys_that_are_missing_are_told_before_anything_is_done(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["eval", "run", "--benchmark", "tiny", "--output", "out/x.jsonl"]) == 2
        assert "policy_base_url" in capsys.readouterr().err
        assert not (elsewhere.parent / "mine" / "benchmarks" / "tiny" / "rows.jsonl").exists()


class TestList:
    def test_benchmarks(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "benchmarks"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].split() == ["name", "domain", "rows", "needs", "description"]
        assert any(line.startswith("truthfulqa_mc1 ") for line in lines)
        assert any(line.split()[:2] == ["tiny", "math"] for line in lines)

    def test_rows_and_needs_are_shown_and_of_many_flavors_only_how_many(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["list", "benchmarks"]) == 0
        lines = {line.split()[0].rstrip(","): line for line in capsys.readouterr().out.splitlines()}
        assert "1,319  a public address for its data" in lines["gsm8k"]
        assert lines["reasoning_gym"].startswith("reasoning_gym, reasoning_gym/ab and 104 more flavors ")
        assert main(["list", "benchmarks", "reasoning_gym", "--json"]) == 0
        entry = json.loads(capsys.readouterr().out)
        assert (entry["num_rows"], entry["needs"]) == (100, ["PyPI for its generators"])
        assert len(entry["flavors"]) == 105

    def test_json_and_one_alone(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "benchmarks", "tiny", "--json"]) == 0
        entry = json.loads(capsys.readouterr().out)
        assert (entry["name"], entry["domain"], entry["description"]) == ("tiny", "math", "Three questions.")
        assert main(["list", "benchmarks", "--json"]) == 0
        assert "tiny" in [entry["name"] for entry in json.loads(capsys.readouterr().out)]
        assert main(["list", "benchmarks", "tiny"]) == 0
        assert "Three questions." in capsys.readouterr().out

    def test_a_search_dir(
        self, elsewhere: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS")
        assert main(["list", "benchmarks", "tiny"]) == 2
        assert main(["list", "benchmarks", "tiny", "--search-dir", str(elsewhere.parent / "mine")]) == 0

    def test_a_flavor(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        tiny = elsewhere.parent / "mine" / "benchmarks" / "tiny"
        described = "tiny_verifier: {resources_servers: {mcqa: {description: Harder ones.}}}\n"
        (tiny / "sets").mkdir()
        (tiny / "sets" / "hard.yaml").write_text(f"config_paths: [benchmarks/tiny/config.yaml]\n{described}")
        (tiny / "plain.yaml").write_text("config_paths: [benchmarks/tiny/config.yaml]\n")
        (tiny / "broken.yaml").write_text("config_paths: [\n")
        shown = {}
        for flavor in ("sets/hard", "plain", "broken"):
            assert main(["list", "benchmarks", f"tiny/{flavor}", "--json"]) == 0
            shown[flavor] = json.loads(capsys.readouterr().out)
        assert [entry["name"] for entry in shown.values()] == ["tiny/sets/hard", "tiny/plain", "tiny/broken"]
        assert [entry["description"] for entry in shown.values()] == [
            "Harder ones.",
            "Three questions.",
            "Three questions.",
        ]
        assert {entry["domain"] for entry in shown.values()} == {"math"}
        assert shown["sets/hard"]["config"] == str(tiny / "sets" / "hard.yaml")
        assert "not valid YAML" in shown["broken"]["problem"]
        assert main(["list", "benchmarks", "tiny/sets/hadr"]) == 2
        assert "Did you mean tiny/sets/hard?" in capsys.readouterr().err

    def test_a_flavor_of_a_benchmark_without_a_config_of_its_own(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder = elsewhere / "benchmarks" / "loose"
        folder.mkdir(parents=True)
        (folder / "one.yaml").write_text("config_paths: [benchmarks/tiny/config.yaml]\n")
        assert main(["list", "benchmarks", "loose/one", "--json"]) == 0
        entry = json.loads(capsys.readouterr().out)
        assert (entry["name"], entry["config"]) == ("loose/one", str(folder / "one.yaml"))

    @pytest.mark.parametrize(
        ("kind", "name"), [("models", "openai_model"), ("agents", "simple_agent"), ("resources-servers", "mcqa")]
    )
    def test_servers(self, kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", kind, "--json"]) == 0
        assert name in [entry["name"] for entry in json.loads(capsys.readouterr().out)]


class TestPlanning:
    def test_the_plan_is_that_of_plan_benchmark(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        from nemo_gym.environment import plan_benchmark

        expected = plan_benchmark("tiny").plan.to_json()
        assert main(["eval", "plan", "--benchmark", "tiny"]) == 0
        assert capsys.readouterr().out == expected
        assert main(["eval", "plan", "--benchmark", "tiny", "--output", "deep/plan.json"]) == 0
        assert capsys.readouterr().out == ""
        assert Path("deep/plan.json").read_text() == expected
        assert [path.name for path in Path("deep").iterdir()] == ["plan.json"]

    def test_a_selection_and_overrides(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        expected = json.loads(_plan(capsys, []))
        for selection in ("t2,t0", "@ids.txt"):
            Path("ids.txt").write_text("t0\n# none\nt2\n")
            plan = json.loads(_plan(capsys, ["--task-ids", selection]))
            assert [task["task_id"]["task_id"] for task in plan["tasks"]] == ["t0", "t2"]
        changed = json.loads(_plan(capsys, ["++responses_create_params.temperature=0.5"]))
        assert changed["tasks"][0]["input_digest"] != expected["tasks"][0]["input_digest"]

    def test_prepare_says_where_the_data_is(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        rows = elsewhere.parent / "mine" / "benchmarks" / "tiny" / "rows.jsonl"
        assert main(["eval", "prepare", "--benchmark", "tiny"]) == 0
        assert capsys.readouterr().out == f"tiny: {rows}\n"
        assert rows.read_text().count("\n") == 3
        assert main(["eval", "prepare", "--benchmark", "tiny", "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == [{"name": "tiny", "path": str(rows)}]

    def test_a_failed_preparation_is_recorded_and_stops_the_next_job(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        script = elsewhere.parent / "mine" / "benchmarks" / "tiny" / "prepare.py"
        good = script.read_text()
        script.write_text(
            "from pathlib import Path\n"
            "def prepare(output_path):\n"
            f"    Path({str(elsewhere / 'runs')!r}).open('a').write('x')\n"
            "    raise RuntimeError('the source is gone')\n"
        )
        for _ in range(2):
            assert main(["eval", "plan", "--benchmark", "tiny"]) == 76
            assert "the source is gone" in capsys.readouterr().err
        assert Path("runs").read_text() == "x"
        (record,) = Path("results").glob("preparation_failed-*.json")
        assert json.loads(record.read_text())["kind"] == "preparation_failed"
        script.write_text(good)
        assert main(["eval", "prepare", "--benchmark", "tiny"]) == 0
        assert not record.exists()


def _plan(capsys: pytest.CaptureFixture[str], options: list[str]) -> str:
    assert main(["eval", "plan", "--benchmark", "tiny", *options]) == 0
    return capsys.readouterr().out


class TestProcess:
    def gym(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            [sys.executable, "-m", "nemo_gym", *arguments], text=True, capture_output=True, check=False, **options
        )

    def test_exit_codes_reach_the_shell(self) -> None:
        assert self.gym("--version").returncode == 0
        failed = self.gym("list", "benchmarks", "no-such")
        assert (failed.returncode, failed.stdout) == (2, "")

    def test_a_reader_that_stops_reading_is_no_error(self) -> None:
        reading, writing = os.pipe()
        os.close(reading)
        try:
            done = subprocess.run(
                [sys.executable, "-m", "nemo_gym", "list", "benchmarks"],
                stdout=writing,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        finally:
            os.close(writing)
        assert (done.returncode, done.stderr) == (141, "")


def run_with_stdout(target: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    command = " ".join([shlex.quote(sys.executable), "-m", "nemo_gym", *arguments, f">{target}"])
    return subprocess.run(["sh", "-c", command], capture_output=True, check=False, env={**os.environ, **variables})


def test_a_stdout_that_cannot_be_written_to_is_told() -> None:
    closed = run_with_stdout("&-", "list", "benchmarks")
    assert (closed.returncode, closed.stderr) == (1, b"gym: failed: cannot write to stdout: it is closed.\n")
    if Path("/dev/full").exists():  # Linux
        full = run_with_stdout("/dev/full", "list", "benchmarks")
        assert full.returncode == 1
        assert full.stderr == b"gym: failed: cannot write to stdout: No space left on device.\n"


def test_data_is_written_in_utf_8_where_the_terminal_does_not_have_it(elsewhere: Path) -> None:
    done = run_with_stdout("out", "env", "resolve", "--benchmark", "tiny", "++a=\u00e4", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "a: \u00e4" in Path("out").read_text(encoding="utf-8")
