"""The process that a prepare script runs in. A program, not a module: it is started by its path.

It needs the standard library only, so that it also runs under the Python of a prepare script's own environment.
Its first line of input is the request; after that the input stays open for as long as the process that asked is
alive, and its end stops this process, so that no prepare script goes on working for nobody. The outcome goes to an
open file that the request names by its number, which leaves standard output to the script.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

STAGED_PARAMETER = "output_path"


def main() -> int:
    request = json.loads(sys.stdin.buffer.readline())
    _stop_when_abandoned(request)
    sys.argv = [request["script"]]
    # The folder of this file is no place to import from; Python puts it first unless told not to.
    own_folder = Path(__file__).absolute().parent
    sys.path[:] = [*request["search_path"], *(folder for folder in sys.path if Path(folder) != own_folder)]
    try:
        _make_importable(request["packages"])
        with _configuration(request["config"]):
            outcome = _run(request)
    except BaseException as error:
        outcome = {"failed": _described(error), "traceback": _script_traceback(error)}
    with open(request["result"], "w", encoding="utf-8") as result:  # noqa: PTH123  (a file without a name)
        json.dump(outcome, result)
    return 1 if "failed" in outcome else 0


def _script_traceback(error: BaseException) -> str:
    """Where in the script it happened; nothing for this package's own errors, which say all there is to say."""
    if any(kind.__name__ == "NemoGymError" for kind in type(error).__mro__):
        return ""
    position = error.__traceback__
    while position is not None and position.tb_frame.f_code.co_filename == __file__:
        position = position.tb_next
    return "".join(traceback.format_exception(type(error), error, position, limit=-20))


def _described(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _run(request: dict[str, Any]) -> dict[str, Any]:
    module = _load(request["module"], Path(request["script"]))
    expected = Path(request["expected"])
    if request["action"] == "is_prepared_data_current":
        current = getattr(module, "is_prepared_data_current", None)
        return {"current": True if current is None else bool(current(expected))}
    args = dict(request["args"])
    staged = Path(request["staged"])
    takes_path = STAGED_PARAMETER not in args and STAGED_PARAMETER in inspect.signature(module.prepare).parameters
    if takes_path:
        args[STAGED_PARAMETER] = staged
    returned = module.prepare(**args)
    if not isinstance(returned, (str, os.PathLike)):
        raise TypeError(f"prepare() must return the path of the file it wrote; it returned {returned!r:.200}")
    return {"output": str(Path(returned).absolute()), "staged": takes_path}


def _load(name: str, script: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, script)
    if spec is None or spec.loader is None:
        raise ImportError(f"{script} is no Python file")
    module = importlib.util.module_from_spec(spec)
    # Under its name, so that what the script defines can be pickled and imported by its own worker processes.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _make_importable(packages: dict[str, str]) -> None:
    """The packages from where the caller has them, without making their neighbours there importable too."""

    class Finder:
        @staticmethod
        def find_spec(name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
            folder = packages.get(name)
            if folder is None:
                return None
            return importlib.util.spec_from_file_location(
                name, Path(folder, "__init__.py"), submodule_search_locations=[folder]
            )

    # Last, so that what the environment has itself comes first.
    sys.meta_path.append(Finder)


@contextlib.contextmanager
def _configuration(config: dict[str, Any] | None) -> Iterator[None]:
    """``config`` as this process's Gym configuration, where the environment has what that takes."""
    if config is None or importlib.util.find_spec("omegaconf") is None:
        yield
        return
    from omegaconf import OmegaConf

    from nemo_gym.config.process_config import process_config

    with process_config(OmegaConf.create(config), serving=True):
        yield


def _stop_when_abandoned(request: dict[str, Any]) -> None:
    lifeline = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    leftovers = []
    if request["action"] == "prepare":
        leftovers = [Path(request["staged"] if request["takes_path"] else request["expected"])]

    def wait_for_the_end() -> None:
        while os.read(lifeline, 4096):
            pass
        for path in leftovers:
            with contextlib.suppress(OSError):
                path.unlink()
        os.killpg(0, 9) if os.getpid() == os.getpgid(0) else os._exit(1)

    threading.Thread(target=wait_for_the_end, name="lifeline", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
