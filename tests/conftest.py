"""Options that keep a test run honest: a least number of passed tests, and no silent skips."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run of CI, so that what it says depends on the change alone; new ones everywhere else.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "default")

# A run that was started in the background of a script ignores Ctrl-C, one under nohup SIGHUP, and so do its children:
# what tests send would never arrive.
for _number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

# The exit code of a run that lost or skipped tests, whether others failed or not: to run those again mends nothing.
TESTS_LOST = 9

INTEGRATION = Path(__file__).parent / "integration"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("honesty")
    group.addoption(
        "--min-passed", type=int, default=0, metavar="N", help="fail when fewer than N tests passed or failed"
    )
    group.addoption("--forbid-skips", action="store_true", help="fail when any test was skipped or xfailed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if INTEGRATION in item.path.parents:
            item.add_marker(pytest.mark.integration)


def broken_promises(config: pytest.Config, stats: dict[str, list[object]]) -> list[str]:
    """What the options ask for and the run does not hold, as sentences."""
    least = config.getoption("min_passed")
    ran = len(stats.get("passed", [])) + len(stats.get("failed", []))
    ran += sum(getattr(report, "when", None) == "setup" for report in stats.get("error", []))
    skipped = len(stats.get("skipped", [])) + len(stats.get("xfailed", []))
    broken = []
    if ran < least:
        broken.append(f"{ran} tests passed or failed, and at least {least} must (--min-passed).")
    if skipped and config.getoption("forbid_skips"):
        broken.append(f"{skipped} tests were skipped, and none may be (--forbid-skips).")
    return broken


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and broken_promises(session.config, reporter.stats):
        session.exitstatus = TESTS_LOST


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for sentence in broken_promises(terminalreporter.config, terminalreporter.stats):
        terminalreporter.write_line(f"ERROR: {sentence}", red=True)
