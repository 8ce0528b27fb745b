"""``--matrix-table PATH``: write the results of the phase x cause matrix as a Markdown table.

Where the file has the two marker lines, the table takes the place of what stands between them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
_PROPERTY = "matrix cell"
_Cell = tuple[str, str]


def note_cell(record_property: Callable[[str, object], None], row: str, column: str, seconds: float) -> None:
    """Call in a test that is one cell: ``seconds`` is what its cell shows when the test passes."""
    record_property(_PROPERTY, (row, column, seconds))


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--matrix-table", type=Path, metavar="PATH", help="write the table of phases and causes to (or into) PATH"
    )


def write_table(config: pytest.Config) -> Path | None:
    """Write what the option asks for, from the reports of this run."""
    path: Path | None = config.getoption("matrix_table", None)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if path is None or reporter is None:
        return None
    cells: dict[_Cell, str] = {}
    for outcome in ("passed", "failed", "error"):
        for report in reporter.stats.get(outcome, []):
            for name, value in getattr(report, "user_properties", ()):
                if name == _PROPERTY:
                    row, column, seconds = value
                    cells[row, column] = f"{seconds:.1f} s" if outcome == "passed" else "**left behind**"
    table = as_table(cells)
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if BEGIN in text and END in text:
        before, after = text.split(BEGIN)[0], text.split(END)[1]
        table = f"{before}{BEGIN}\n{table}{END}{after}"
    path.write_text(table, encoding="utf-8")
    return path


def as_table(cells: dict[_Cell, str]) -> str:
    """Causes down, phases across, each in the order in which they first ran."""
    rows = list(dict.fromkeys(row for row, _ in cells))
    columns = list(dict.fromkeys(column for _, column in cells))
    lines = [["", *rows], ["---"] * (len(rows) + 1)]
    lines += [[column, *(cells.get((row, column), "-") for row in rows)] for column in columns]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
