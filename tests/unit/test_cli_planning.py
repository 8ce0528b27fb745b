"""What `gym eval plan`, `gym eval prepare` and `gym env resolve` print, and where."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nemo_gym.cli.main import main
from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.config.yaml_files import dump_yaml
from nemo_gym.environment import plan_benchmark
from tests.unit.tiny_benchmark import write_tiny_benchmark


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with a benchmark of one's own in a folder beside it."""
    return write_tiny_benchmark(tmp_path, monkeypatch)


@pytest.fixture
def chatty(elsewhere: Path) -> Path:
    """The same; its prepare script prints, and so does a process that it starts."""
    script = elsewhere.parent / "mine" / "benchmarks" / "tiny" / "prepare.py"
    source = script.read_text()
    talk = "    print('said by prepare')\n    subprocess.run(['echo', 'said by its child'])\n"
    script.write_text("import subprocess\n" + source.replace("    return output_path", talk + "    return output_path"))
    return elsewhere


def gym(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "nemo_gym", *arguments], text=True, capture_output=True, check=False)


class TestStdoutIsForData:
    def test_the_plan_alone_stands_on_stdout(self, chatty: Path) -> None:
        done = gym("eval", "plan", "--benchmark", "tiny")
        assert done.returncode == 0
        assert done.stdout == plan_benchmark("tiny").plan.to_json()
        assert "said by prepare\n" in done.stderr
        assert "said by its child\n" in done.stderr

    @pytest.mark.parametrize("more", [[], ["num_prepare_benchmark_processes=2"]])
    def test_so_do_the_prepared_files(self, chatty: Path, more: list[str]) -> None:
        done = gym("eval", "prepare", "--benchmark", "tiny", "--json", *more)
        assert done.returncode == 0
        assert [entry["name"] for entry in json.loads(done.stdout)] == ["tiny"]
        assert "said by prepare\n" in done.stderr

    def test_from_python_what_a_script_prints_stays_on_stdout(self, chatty: Path) -> None:
        code = "from nemo_gym.environment import plan_benchmark; plan_benchmark('tiny')"
        done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
        assert done.stdout == "said by prepare\nsaid by its child\n"


class TestSelection:
    def test_a_file_of_ids_plans_what_python_plans(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        Path("ids.txt").write_text("\ufefft2\r\n\r\n# the first\r\n  t0  \r\n", encoding="utf-8")
        assert main(["eval", "plan", "--benchmark", "tiny", "--task-ids", "@ids.txt"]) == 0
        assert capsys.readouterr().out == plan_benchmark("tiny", task_ids=["t0", "t2"]).plan.to_json()

    def test_an_unknown_id_is_named_with_the_nearest(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["eval", "plan", "--benchmark", "tiny", "--task-ids", "t0,tt1"]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert re.search(r"No task with the id 'tt1' \(nearest: 't1'", output.err)


class TestResolve:
    def test_secrets_are_hidden(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ["env", "resolve", "--benchmark", "tiny", "--model-api-key", "sk-very-secret", "++a.b=1"]
        arguments += ["--model", "m", "--model-url", "http://me:pass-word@127.0.0.1/v1"]
        for more in ([], ["--json"], ["--model-type", "openai_model"]):
            assert main([*arguments, *more]) == 0
            text = capsys.readouterr().out
            assert "sk-very-secret" not in text
            assert "pass-word" not in text
            assert "tiny_agent" in text

    def test_it_reads_back_as_the_same(
        self, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tiny = tmp_path / "mine" / "benchmarks" / "tiny" / "config.yaml"
        tricky = {"a": ["1", "on", "1e3", 1e3, None, "x: y", "\\${z}", "\u2028"], "gone": 1, "b": {"_copy": "a"}}
        tiny.write_text(tiny.read_text() + dump_yaml(tricky), encoding="utf-8")
        overrides = ["_delete_key=gone"]
        assert main(["env", "resolve", "--benchmark", "tiny", *overrides]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"# from {tiny}\n")
        Path("resolved.yaml").write_text(text, encoding="utf-8")
        again = to_plain(load_config(["resolved.yaml"], serving=False))
        assert main(["env", "resolve", "--benchmark", "tiny", "--json", *overrides]) == 0
        resolved = json.loads(capsys.readouterr().out)
        assert again.pop("config_paths") == [str(elsewhere / "resolved.yaml")]
        assert resolved.pop("config_paths") == [str(tiny)]
        assert again == resolved
        assert "gone" not in resolved
        assert resolved["a"][6] == "${z}"

    def test_with_a_model_type_it_is_what_serving_sees(
        self, elsewhere: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["env", "resolve", "--benchmark", "tiny"]) == 0
        assert "policy_model:" not in capsys.readouterr().out
        assert main(["env", "resolve", "--benchmark", "tiny", "--model-type", "openai_model"]) == 2
        output = capsys.readouterr()
        assert output.out == ""
        assert all(f"{key} is missing" in output.err for key in ("policy_base_url", "policy_api_key"))
        assert main(["env", "resolve", "--benchmark", "tiny", "--model-type", "llama_cpp_model"]) == 0
        assert "\npolicy_model:\n" in capsys.readouterr().out
