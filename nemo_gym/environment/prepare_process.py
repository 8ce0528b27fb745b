"""Running a prepare script in a process of its own.

Whatever the script does to its process (environment variables, working directory, signal handlers, loggers,
``os._exit``, running out of memory) stays there; a script that hangs can be ended; and what it has written so far
never stands in the data file's place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import nemo_gym
from nemo_gym.config.sources import search_roots
from nemo_gym.environment import prepare_child
from nemo_gym.environment.data_lock import staged_file, written_in_place
from nemo_gym.environment.downloads import CACHE_VARIABLE, PYTHON_VARIABLE, cache_dir
from nemo_gym.environment.preparation_failure import PreparationFailedError
from nemo_gym.environment.prepare_script import inspect_script, prepare_json_default
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

DEFAULT_TIMEOUT_S: Final = 7200.0
_EXIT_GRACE_S: Final = 5.0


@dataclass
class PrepareRun:
    """What a run of a script needs beyond its arguments.

    ``processes`` are those that go on at the moment. ``stopped``, where there is one, is set once no further may.
    """

    script: Path | None = None
    root: Path | None = None
    search_path: list[str] = field(default_factory=list)
    cache: Path | None = None
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: threading.Event | None = None

    @contextmanager
    def running(self, process: subprocess.Popen[bytes]) -> Iterator[None]:
        """``process`` as one of the run. After the block it has ended, with all that it started."""
        self.processes.append(process)
        try:
            # Not before: from here on, whoever stops the run sees either this process or its end.
            if self.stopped is not None and self.stopped.is_set():
                raise CancelledError("The preparation was stopped.")
            yield
        finally:
            end_process(process)
            self.processes.remove(process)

    def stop(self) -> None:
        """End what the run is doing, from another thread, and let it begin nothing further."""
        if self.stopped is not None:
            self.stopped.set()
        for process in list(self.processes):
            end_process(process)


_current_run: ContextVar[PrepareRun | None] = ContextVar("nemo_gym_prepare_run", default=None)


def current_run() -> PrepareRun | None:
    """The run that this thread is in, if it is in one."""
    return _current_run.get()


@contextmanager
def prepare_run(run: PrepareRun) -> Iterator[PrepareRun]:
    """``run`` for the calls of ``_run_isolated_prepare`` in this thread."""
    token = _current_run.set(run)
    try:
        yield run
    finally:
        _current_run.reset(token)


def _prepare_json_default(value: Any) -> str:
    """Serialize path arguments; a value of another kind that JSON does not have is a ``TypeError``."""
    return prepare_json_default(value)


def _run_isolated_prepare(
    python: Path,
    module: str,
    action: str,
    expected: Path,
    args: dict[str, Any],
    config: DictConfig | dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Run ``action`` of a prepare script under ``python``; its standard output stays visible.

    ``module`` is the script's dotted name, ``action`` ``prepare`` or ``is_prepared_data_current``, ``expected``
    the configured data file, ``args`` what ``prepare`` is called with, ``config`` what the script sees as its Gym
    configuration (of a plain dict, each text as it stands). Returns ``{"output": <path>}``, with the complete file at
    ``expected``, or ``{"current": <bool>}``.
    Raises ``PreparationFailedError``, and ``ConfigError`` for a script that writes another file than configured.
    """
    run = current_run() or PrepareRun()
    expected = Path(expected).absolute()
    staged = staged_file(expected)
    plain = _plain_config(config)
    with ExitStack() as cleanup:
        # Without a name, so that it is gone with its last reader, however that one ends.
        result = cleanup.enter_context(tempfile.TemporaryFile())
        request = _request(run, module, action, expected, staged, args, plain, result.fileno())
        if action == "prepare":
            expected.parent.mkdir(parents=True, exist_ok=True)
            cleanup.callback(staged.unlink, missing_ok=True)
            if not request["takes_path"]:
                cleanup.enter_context(written_in_place(expected))
        outcome = _outcome(run, python, module, action, request, result)
        if "failed" in outcome:
            raise PreparationFailedError(module, action, _reason(outcome, plain))
        if action == "prepare":
            _accept(module, outcome, expected, staged)
            return {"output": str(expected)}
        return {"current": bool(outcome["current"])}


def _request(
    run: PrepareRun,
    module: str,
    action: str,
    expected: Path,
    staged: Path,
    args: dict[str, Any],
    config: Mapping[str, Any] | None,
    result: int,
) -> dict[str, Any]:
    script = run.script or _find_script(module)
    takes_path = inspect_script(script).takes_output_path and prepare_child.STAGED_PARAMETER not in args
    root = run.root or script.parent
    if config is not None:
        from nemo_gym.config.interpolation import escape_texts

        config = escape_texts(config)  # the script's process reads it as a config
    return {
        "module": module,
        "script": str(script),
        "action": action,
        "expected": str(expected),
        "staged": str(staged),
        "takes_path": takes_path,
        "args": args,
        "config": config,
        "search_path": [*run.search_path, str(root), str(script.parent)],
        "packages": _pure_packages(),
        "result": result,
    }


def _plain_config(config: DictConfig | dict[str, Any] | None) -> dict[str, Any] | None:
    if config is None or isinstance(config, dict):
        return config
    from nemo_gym.config.plain import to_plain

    return to_plain(config)


def _pure_packages() -> dict[str, str]:
    """Packages without compiled parts that a script under another Python may import from here."""
    import tenacity

    packages = (nemo_gym, tenacity)
    return {package.__name__: str(Path(str(package.__file__)).resolve().parent) for package in packages}


def _find_script(module: str) -> Path:
    relative = Path(*module.split(".")).with_suffix(".py")
    places = [root / relative for root in search_roots()]
    places += [Path(folder) / relative for folder in sys.path if folder]
    for place in places:
        if place.is_file():
            return place.absolute()
    raise ConfigError(f"There is no prepare script {relative} in {', '.join(map(str, search_roots()))}.")


def _outcome(
    run: PrepareRun, python: Path, module: str, action: str, request: Mapping[str, Any], result: IO[bytes]
) -> dict[str, Any]:
    """What the script's process said before it ended; how it ended, when it said nothing."""
    try:
        line = json.dumps(request, default=_prepare_json_default).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise ConfigError(f"prepare_script_args for {module}: {error}") from None
    try:
        # A session of its own, so that all the processes it starts can be ended with it.
        process = subprocess.Popen(
            [str(python), "-u", prepare_child.__file__],
            stdin=subprocess.PIPE,
            stdout=_visible_stdout(),
            env=_environment(run, python),
            start_new_session=True,
            pass_fds=(result.fileno(),),
        )
    except OSError as error:
        raise PreparationFailedError(module, action, f"{python} cannot be started: {error.strerror}") from None
    with run.running(process):
        late = _wait(process, line, run.timeout_s)
        if late is not None:
            return late
        result.seek(0)
        try:
            said: dict[str, Any] = json.loads(result.read())
        except ValueError:  # nothing, or not all of it
            return {"failed": _how_it_ended(process.returncode)}
        return said


def _environment(run: PrepareRun, python: Path) -> dict[str, str]:
    environment = {
        **os.environ,
        CACHE_VARIABLE: str(run.cache or cache_dir()),
        PYTHON_VARIABLE: os.environ.get(PYTHON_VARIABLE) or sys.executable,
    }
    if python != Path(sys.executable):
        # An environment of its own takes nothing from this one.
        for variable in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environment.pop(variable, None)
    return environment


def _wait(process: subprocess.Popen[bytes], line: bytes, timeout_s: float | None) -> dict[str, Any] | None:
    """Hand over the request and wait; the outcome where that is that there is no end to it."""
    late = threading.Event()

    def give_up() -> None:
        late.set()
        _kill(process)

    # A wait with a time limit of its own would look only every 50 ms whether there is an end.
    timer = threading.Timer(min(timeout_s or threading.TIMEOUT_MAX, threading.TIMEOUT_MAX), give_up)
    timer.daemon = True
    timer.start()
    try:
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # ended already: its exit code tells more
                process.stdin.write(line)
                process.stdin.flush()
        process.wait()
        # What it has started and left running. A number is not given out again while a group bears it, and in the
        # moment since the wait the system does not come round to one that is free.
        _kill(process)
    finally:
        timer.cancel()
    if not late.is_set():
        return None
    return {
        "failed": f"it did not end within {timeout_s:g} s and was ended. If it only needs longer, set "
        "prepare_timeout_s to more seconds (null: no limit)"
    }


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process, and all that it has started in its session."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def end_process(process: subprocess.Popen[bytes]) -> None:
    """End a process of a run with all it has started; nothing to do when it has ended by itself."""
    if process.poll() is None:
        _kill(process)
        process.wait(_EXIT_GRACE_S)
    if process.stdin is not None:
        with suppress(BrokenPipeError):
            process.stdin.close()


def _visible_stdout() -> int | None:
    """Where this process's standard output goes at the moment, so that a caller can send it elsewhere."""
    try:
        sys.stdout.flush()
        return sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):
        return None


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code} before it was done"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (which is what the system does when memory runs out)" if code == -signal.SIGKILL else ""
    return f"its process was killed by {name}{hint}"


def _reason(outcome: Mapping[str, Any], config: dict[str, Any] | None) -> str:
    from nemo_gym.config.redaction import find_secrets, redact_text

    text = str(outcome["failed"])
    if outcome.get("traceback"):
        text = f"{text}\n{outcome['traceback'].rstrip()}"
    return redact_text(text, find_secrets(config or {}))


def _accept(module: str, outcome: Mapping[str, Any], expected: Path, staged: Path) -> None:
    """Put what the script wrote in place, when it is the file that was asked for and there is something in it."""
    written = staged if outcome["staged"] else expected
    if os.path.realpath(outcome["output"]) != os.path.realpath(written):
        raise ConfigError(
            f"The prepare script {module} wrote {outcome['output']}, but the config's jsonl_fpath is {expected}. "
            "Correct one of the two: the script's path, or the data set's jsonl_fpath."
        )
    if not written.is_file():
        raise PreparationFailedError(module, "prepare", f"it returned {outcome['output']} but wrote no such file")
    if written.stat().st_size == 0:
        raise PreparationFailedError(module, "prepare", "it wrote an empty file")
    if outcome["staged"]:
        staged.replace(expected)
