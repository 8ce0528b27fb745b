"""``gym new``: what it makes passes every check as it is, and what it refuses leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from nemo_gym.cli import scaffold
from nemo_gym.cli.main import main
from nemo_gym.config.resolve import load_config, to_plain
from nemo_gym.environment import plan_benchmark

ROOT = Path(__file__).parents[2]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one of each kind, the benchmark standing on the others."""
    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
        assert main(["new", "resources-server", "fair_judge"]) == 0
        assert main(["new", "agent", "one_shot"]) == 0
        assert main(["new", "model", "parrot"]) == 0
        assert main(["new", "benchmark", "quiz", "--resources-server", "fair_judge", "--agent", "one_shot"]) == 0
    return root


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def check(folder: Path, *command: str) -> None:
    """Run a module of Python in a folder; it must find nothing wrong."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


SERVER_FILES = {"app.py", "config.yaml", "requirements.txt", "README.md"}


class TestWhatIsMade:
    def test_the_files(self, made: Path) -> None:
        folders = {
            "images/resources_servers/fair_judge": SERVER_FILES | {"tests/test_fair_judge_server.py"},
            "images/responses_api_agents/one_shot": SERVER_FILES | {"tests/test_one_shot_agent.py"},
            "images/responses_api_models/parrot": SERVER_FILES | {"tests/test_parrot_model.py"},
            "benchmarks/quiz": {"config.yaml", "prepare.py", "prompt.yaml", "README.md", "tests/test_quiz_rows.py"},
        }
        wanted = {f"{folder}/{path}" for folder, paths in folders.items() for path in paths}
        assert {path for path in files_below(made) if "cache" not in path and "/data/" not in path} == wanted
        texts = [(made / path).read_text(encoding="utf-8") for path in wanted]
        assert not [text for text in texts if "$" in text or "NAME}" in text]

    def test_ruff_finds_nothing(self, made: Path) -> None:
        config = ["--config", str(ROOT / "pyproject.toml"), "--no-cache"]
        # where they would stand in this checkout: what is imported from it is its own
        check(made, "ruff", "check", *config, "--config", f"src = [{str(ROOT)!r}, {str(made)!r}]")
        check(made, "ruff", "format", "--check", *config)

    def test_mypy_finds_nothing(self, made: Path) -> None:
        cache = ROOT / ".mypy_cache" / "made"  # kept: reading the libraries takes it half a minute
        check(made, "mypy", "--strict", "--explicit-package-bases", "--cache-dir", str(cache), "images", "benchmarks")

    def test_its_tests_pass(self, made: Path) -> None:
        check(made, "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error", "images", "benchmarks")

    def test_a_server_is_short(self, made: Path) -> None:
        lines = (made / "images/resources_servers/fair_judge/app.py").read_text(encoding="utf-8").splitlines()
        assert len([line for line in lines if line.strip()]) < 30

    def test_it_is_listed_planned_and_ready_to_be_served(
        self, made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(made)
        monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
        for kind, name in [
            ("benchmarks", "quiz"),
            ("resources-servers", "fair_judge"),
            ("agents", "one_shot"),
            ("models", "parrot"),
        ]:
            assert main(["list", kind, name, "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["config"].startswith(str(made))
        planned = plan_benchmark("quiz")
        assert planned.task_ids() == ["quiz-1", "quiz-2", "quiz-3", "quiz-4"]
        assert [row["expected_answer"] for row in planned.rows] == ["D", "B", "A", "D"]
        assert {row["agent_ref"]["name"] for row in planned.rows} == {"quiz_one_shot"}
        asked = planned.rows[0]["responses_create_params"]["input"][-1]["content"]
        assert asked.startswith("Which of these numbers is prime?\n\nA. ")
        paths = ["benchmarks/quiz/config.yaml", "images/responses_api_models/parrot/config.yaml"]
        config = to_plain(load_config(paths, {}, serving=True))
        servers = {name for name, entry in config.items() if isinstance(entry, dict) and len(entry) == 1}
        assert servers >= {"quiz_resources_server", "quiz_one_shot", "policy_model"}

    def test_without_options_it_stands_on_what_is_there(self, work: Path) -> None:
        assert main(["new", "benchmark", "plain"]) == 0
        planned = plan_benchmark("plain")
        assert {row["agent_ref"]["name"] for row in planned.rows} == {"plain_simple_agent"}
        config = to_plain(load_config(["benchmarks/plain/config.yaml"], {}, serving=False))
        assert config["plain_resources_server"]["resources_servers"]["mcqa"]["domain"] == "knowledge"
        for row in planned.rows:
            assert row["expected_answer"] in {option["letter"] for option in row["options"]}


class TestWhatIsSaid:
    def test_the_files_and_what_to_type_next(self, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["new", "model", "parrot"]) == 0
        said = capsys.readouterr()
        folder = "images/responses_api_models/parrot"
        assert set(said.out.splitlines()) == {
            f"{folder}/{path}" for path in SERVER_FILES | {"tests/test_parrot_model.py"}
        }
        assert f"  python -m pytest {folder}\n  gym eval run --benchmark truthfulqa_mc1 --model-type parrot" in said.err
        assert "cd " not in said.err

    def test_elsewhere(self, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["new", "agent", "one_shot", "--directory", "of mine/here", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["folder"] == "of mine/here/images/responses_api_agents/one_shot"
        assert set(said["files"]) == {str(path.relative_to(work)) for path in work.rglob("*") if path.is_file()}
        assert said["next"] == [
            "cd 'of mine/here'",
            "python -m pytest images/responses_api_agents/one_shot",
            "gym new benchmark NAME --agent one_shot",
        ]
        # found there by what is made there next, before it is made known to anything else
        assert main(["new", "benchmark", "quiz", "--agent", "one_shot", "--directory", "of mine/here"]) == 0
        assert "cd 'of mine/here'" in capsys.readouterr().err

    def test_rows_for_another_server_may_need_more(self, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["new", "benchmark", "quiz", "--resources-server", "counter"]) == 0
        assert "make them what counter asks for" in capsys.readouterr().err
        config = (work / "benchmarks/quiz/config.yaml").read_text(encoding="utf-8")
        assert "  _inherit_from: counter\n  resources_servers:\n    counter:\n      domain: agent\n" in config

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["agent", "my-agent"], "found 'my-agent'. Did you mean my_agent?"),
            (["agent", "MyAgent2"], "found 'MyAgent2'. Did you mean my_agent2?"),
            (["model", "2fast"], "found '2fast'. Did you mean fast?"),
            (["model", "a/b"], "found 'a/b'. Did you mean a_b?"),
            (["model", "../up"], "Did you mean up?"),
            (["model", ""], "begins with a letter and ends without _; found ''."),
            (["model", "a" * 41], "has 41 characters; the most are 40"),
            (["agent", "class"], "cannot be called class: that is a word of Python. Did you mean class_agent?"),
            (["agent", "yes"], "cannot be called yes: that is a value in YAML. Did you mean yes_agent?"),
            (
                ["benchmark", "query"],
                "that is a name with a meaning of its own in configs. Did you mean query_benchmark?",
            ),
            (["model", "registry"], "cannot be called registry"),
            (
                ["resources-server", "mcqa"],
                f"mcqa is taken, by the resources server in {ROOT}/images/resources_servers",
            ),
            (["model", "simple_agent"], "simple_agent is taken, by the agent in"),
            (["benchmark", "counter"], "counter is taken, by the benchmark in"),
            (
                ["benchmark", "quiz", "--agent", "simple_agnt"],
                "Unknown agent 'simple_agnt'. Did you mean simple_agent?",
            ),
            (["benchmark", "quiz", "--resources-server", "mcq"], "Did you mean mcqa?"),
            (["benchmark", "quiz", "--resources-server", "mcqa/x"], "by the name of its folder; found 'mcqa/x'"),
            (
                ["agent", "one_shot", "--directory", "occupied"],
                "Cannot write occupied/images/responses_api_agents/one_shot",
            ),
            (["agnt", "x"], "no command 'agnt': did you mean 'agent'?"),
            (["agent"], "NAME"),
            (["agent", "x", "y=1"], "does not know what to do with 'y=1'"),
        ],
    )
    def test_mistakes(self, arguments: list[str], said: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (work / "occupied").touch()
        assert main(["new", *arguments]) == 2
        error = capsys.readouterr()
        assert said in error.err
        assert error.out == ""
        assert files_below(work) == {"occupied"}

    def test_nothing_is_overwritten(self, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (work / "benchmarks/quiz").mkdir(parents=True)
        (work / "benchmarks/quiz/notes.txt").write_text("mine", encoding="utf-8")
        assert main(["new", "benchmark", "quiz"]) == 2
        assert f"quiz is taken, by the benchmark in {work}/benchmarks/quiz. Choose another." in capsys.readouterr().err
        assert files_below(work) == {"benchmarks/quiz/notes.txt"}
        with pytest.raises(scaffold.ConfigError, match=r"Cannot write .*: Directory not empty"):
            scaffold.write_folder(work / "benchmarks/quiz", {"notes.txt": "other"})
        assert files_below(work) == {"benchmarks/quiz/notes.txt"}
        assert (work / "benchmarks/quiz/notes.txt").read_text(encoding="utf-8") == "mine"

    def test_a_server_file_that_declares_another(self, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
        folder = work / "images/responses_api_agents/odd"
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("a: {responses_api_agents: {other: {}}}\n", encoding="utf-8")
        assert main(["new", "benchmark", "quiz", "--agent", "odd"]) == 2
        assert "declares no agent odd; needed: NAME: {responses_api_agents: {odd: ...}}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("kind", "name", "class_name"),
    [
        (scaffold.RESOURCES_SERVER, "my_judge", "MyJudgeResources"),
        (scaffold.AGENT, "agent", "Agent"),
        (scaffold.MODEL, "tiny_model", "TinyModel"),
        (scaffold.MODEL, "x2", "X2Model"),
    ],
)
def test_class_names(kind: scaffold.Kind, name: str, class_name: str) -> None:
    assert scaffold.class_name(kind, name) == class_name


def test_templates_are_part_of_a_wheel() -> None:
    """And of an editable install, which is the checkout itself."""
    templates = {path.relative_to(ROOT).as_posix() for path in scaffold.TEMPLATES.rglob("*.template")}
    assert {path.split("/")[3] for path in templates} == {kind.name for kind in scaffold.KINDS}
    carried = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert templates <= carried
