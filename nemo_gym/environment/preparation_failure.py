"""The failure of a benchmark's own preparation, and the record of it that stops a chain of jobs.

A chain of jobs runs the same command again and again, each job going on where the last one was cut off. When the
preparation itself is what fails, every further job would fail the same way. So the command line leaves a record,
``preparation_failed-<benchmark>.json`` in the results directory, and looks for it first: while what was to be
prepared is still the same, it stops at once with the same exit code. The record is void as soon as the prepare
script, its arguments, the configuration (but for the model) or the network settings change, and it goes with the next
preparation that succeeds; deleting the file clears it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Final

from nemo_gym.config.home import expanded
from nemo_gym.config.instances import POLICY_KEYS, POLICY_MODEL
from nemo_gym.environment.benchmarks import BenchmarkConfig
from nemo_gym.errors import ConfigError

logger = logging.getLogger(__name__)

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
# Settings from outside the config that decide whether a preparation can succeed. NEMO_GYM_TOKEN is none of them: jobs
# make a fresh one each.
_NETWORK_SETTINGS: Final = re.compile(
    r"NEMO_GYM_(?:CACHE_DIR|DATA_MIRROR|EXTRA_ROOTS|PYTHON)|PIP_.*|UV_.*|HF_.*|.*_PROXY|.*_CA_BUNDLE|SSL_CERT_.*",
    re.IGNORECASE,
)
_NOT_DECISIVE: Final = frozenset({*POLICY_KEYS, POLICY_MODEL, "config_paths", "head_server", "verbose", "json"})
_SOURCES: Final = ("*.py", "*.toml", "*.lock")
_FIELDS: Final = ("kind", "module", "action", "reason", "fingerprint")


class PreparationFailedError(RuntimeError):
    """A benchmark's data preparation failed in its own code or environment.

    Trying again would fail the same way, so the command line exits with ``stop_exit_code`` and records ``kind``,
    ``module``, ``action`` and ``reason`` for the next job of a chain. It pickles.
    """

    kind: ClassVar[str] = "preparation_failed"
    stop_exit_code: ClassVar[int] = 76

    def __init__(self, module: str, action: str, reason: str) -> None:
        super().__init__(f"The preparation of {module} failed ({action}): {reason}")
        self.module = module
        self.action = action
        self.reason = reason
        self._init_args = (module, action, reason)

    def __reduce__(self) -> tuple[type[PreparationFailedError], tuple[str, str, str]]:
        return type(self), self._init_args


@contextmanager
def stop_recorded(config: Mapping[str, Any], datasets: Sequence[BenchmarkConfig]) -> Iterator[None]:
    """What the command line puts around preparing: stops at once on a record, leaves one on a failure.

    A preparation that succeeds clears the records of its data sets.
    """
    for dataset in datasets:
        check_stop_record(config, dataset)
    try:
        yield
    except PreparationFailedError as error:
        failed = next((dataset for dataset in datasets if dataset.module == error.module), datasets[0])
        path = write_stop_record(error, config, failed)
        if path is not None:
            error.add_note(f"Recorded in {path}, which stops the next job of a chain. To try again, delete that file.")
        raise
    for dataset in datasets:
        clear_stop_record(config, dataset)


def stop_record_path(config: Mapping[str, Any], benchmark: str) -> Path:
    """Where the record of this benchmark's failed preparation is: in the config's ``results_dir``."""
    results = expanded(str(config.get("results_dir") or "results"), "results_dir")
    return results / f"preparation_failed-{_UNSAFE.sub('_', benchmark)}.json"


def write_stop_record(
    error: PreparationFailedError, config: Mapping[str, Any], benchmark: BenchmarkConfig
) -> Path | None:
    """Record the failure for the next job of a chain; None (and a warning) where that cannot be written."""
    path = stop_record_path(config, benchmark.name)
    record = {
        "kind": error.kind,
        "module": error.module,
        "action": error.action,
        "reason": error.reason,
        "exit_code": error.stop_exit_code,
        "recorded_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "fingerprint": _fingerprint(config, benchmark),
        "to_clear": "Delete this file.",
    }
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as fault:
        logger.warning("Cannot record the failed preparation in %s: %s", path, fault)
        return None
    return path


def check_stop_record(config: Mapping[str, Any], benchmark: BenchmarkConfig) -> None:
    """Raise the recorded failure again when the same preparation has failed before and nothing has changed."""
    path = stop_record_path(config, benchmark.name)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read the record of a failed preparation, {path}: {error}. Delete it.") from None
    if not isinstance(record, dict) or not all(isinstance(record.get(key), str) for key in _FIELDS):
        raise ConfigError(f"{path} is no record of a failed preparation. Delete it.")
    if record["fingerprint"] != _fingerprint(config, benchmark):
        return
    raise PreparationFailedError(
        record["module"],
        record["action"],
        f"{record['reason']}\nThis was recorded in {path}, and what is to be prepared has not changed since. To try "
        "again all the same, delete that file.",
    )


def clear_stop_record(config: Mapping[str, Any], benchmark: BenchmarkConfig) -> None:
    """Forget a recorded failure, after a preparation that succeeded; a warning where that cannot be."""
    path = stop_record_path(config, benchmark.name)
    try:
        path.unlink()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as fault:
        logger.warning("Cannot remove the record of an earlier failed preparation, %s: %s", path, fault)


def _fingerprint(config: Mapping[str, Any], benchmark: BenchmarkConfig) -> str:
    """A hash of all that decides how a preparation goes, as far as this process can see it.

    The model has no part in it: preparing, planning and running fail alike.
    """
    decisive = {key: value for key, value in config.items() if key not in _NOT_DECISIVE}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode())
    script = benchmark.script_file
    if script is not None:
        for path in sorted({path for pattern in _SOURCES for path in script.parent.glob(pattern)}):
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    for name in sorted(os.environ):
        if _NETWORK_SETTINGS.fullmatch(name):
            digest.update(f"{name}={os.environ[name]}\0".encode(errors="surrogateescape"))
    return digest.hexdigest()
