"""What the verifier of the multiple-choice benchmarks says to every right and every wrong letter, as models write them.

::

    python -m tests.benchmarks.choice_references [BENCHMARK ...]

Prepares each benchmark, as it is and shuffled by another seed, from ``NEMO_GYM_DATA_MIRROR`` or the public addresses.
Every verdict that is not the one wanted is printed, and counted in the table.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from images.resources_servers.mcqa.app import Option
from images.resources_servers.mcqa.choices import find_answer
from tests.benchmarks.math_references import script_of

BENCHMARKS = ("mmlu_stem", "openbookqa", "hellaswag", "truthfulqa_mc1")
# A form is what stands around the letter, and whether the option's text follows, or stands alone.
FORMS = (
    "{letter}",
    "{letter}. {text}",
    "{text}",
    "\\boxed{{{text}}}",
    "**{letter}**",
    "({letter})",
    "The correct answer is option ({letter}).",
    "Answer: {letter}",
    "\\boxed{{\\text{{{letter}}}}}",
    '{{"answer": "{letter}"}}',
    "It is about what the others are not.\n\nSo the answer is {letter}) {text}",
)


def rows_of(name: str, **arguments: Any) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = script_of(name).prepare(Path(folder, "rows.jsonl"), **arguments)
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def examine(name: str, rows: list[dict[str, Any]]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for row in rows:
        options = [Option(**option) for option in row["options"]]
        texts = {option.letter: option.text for option in options}
        right_text = texts[row["expected_answer"]]
        for option in options:
            wanted = option.text == right_text
            for form in FORMS:
                answer = form.format(letter=option.letter, text=option.text)
                letter, _ = find_answer(answer, texts)
                kind = "right" if wanted else "wrong"
                counts[kind] += 1
                if (letter is not None and texts[letter] == right_text) is not wanted or letter is None:
                    counts[f"{kind}, unwanted"] += 1
                    print(f"{name} {row['task_id']}: {answer!r} is read as {letter}")
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("benchmarks", nargs="*", default=BENCHMARKS)
    lines = []
    for name in parser.parse_args().benchmarks:
        for order, arguments in (("as it is", {}), ("shuffled", {"seed": "1"})):
            rows = rows_of(name, **arguments)
            counts = examine(name, rows)
            shown = " | ".join(str(counts[kind]) for kind in ("right", "right, unwanted", "wrong", "wrong, unwanted"))
            letters = Counter(row["expected_answer"] for row in rows)
            balance = ", ".join(f"{letter} {letters[letter]}" for letter in sorted(letters))
            lines.append(f"| {name} | {order} | {shown} | {balance} |")
    print("\n| Benchmark | Order | Right letters | Not taken | Wrong letters | Taken | Right letters by letter |")
    print("|---|---|---|---|---|---|---|\n" + "\n".join(lines))


if __name__ == "__main__":
    main()
