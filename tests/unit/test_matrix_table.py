"""The table of the fault tests' matrix."""

from __future__ import annotations

from tests.support.matrix_table import as_table


def test_rows_across_and_columns_down() -> None:
    cells = {("build", "Ctrl-C"): "0.1 s", ("serve", "SIGKILL"): "0.2 s"}
    assert as_table(cells) == (
        "|  | build | serve |\n| --- | --- | --- |\n| Ctrl-C | 0.1 s | - |\n| SIGKILL | - | 0.2 s |\n"
    )
