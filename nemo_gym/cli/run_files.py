"""The files that say where a run's results come from: written when it begins, compared when it is resumed."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import psutil

import nemo_gym
from nemo_gym.cli.output import write_whole
from nemo_gym.cli.planning import config_as_yaml
from nemo_gym.cli.run_plan import PlannedRun, RunOptions
from nemo_gym.cli.run_servers import OpenServers, Phases
from nemo_gym.config.comparison import config_digest, differing_keys
from nemo_gym.config.redaction import find_secrets, redact_text
from nemo_gym.config.yaml_files import parse_yaml_dict
from nemo_gym.containers.image_lock import ImageLock, read_lock
from nemo_gym.environment.checkout import gym_commit
from nemo_gym.errors import ConfigError, NemoGymError
from nemo_gym.eval.eval_plan import EvalPlan
from nemo_gym.eval.plan_difference import describe_difference, plan_digest
from nemo_gym.rollouts.provenance import (
    KILLED,
    RUNNING,
    RunRecord,
    Segment,
    now_utc,
    parse_run_record,
)
from nemo_gym.rollouts.results import ResultPaths, write_json_lines
from nemo_gym.rollouts.run import Attempt

logger = logging.getLogger(__name__)

_LIBRARIES: Final = ("aiohttp", "docker", "omegaconf", "orjson", "pydantic")


@contextlib.contextmanager
def held(paths: ResultPaths) -> Iterator[None]:
    """Nobody else writes these files inside the block; ``ConfigError`` when somebody does already."""
    from filelock import FileLock, Timeout

    lock = FileLock(paths.lock)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigError(
            f"Another process is writing to {paths.rollouts} (it holds {paths.lock}). Wait until it has ended, or "
            "choose another --output."
        ) from None
    except OSError as error:
        raise ConfigError(f"Cannot write results to {paths.rollouts.parent}: {error.strerror or error}.") from error
    try:
        yield
    finally:
        lock.release()


def find_run_to_resume(paths: ResultPaths) -> RunRecord | None:
    """The run that has left these files; None when there is nothing yet. ``ConfigError``: results of unknown origin."""
    if paths.run.is_file():
        return parse_run_record(paths.run.read_bytes(), str(paths.run))
    if paths.rollouts.is_file() and paths.rollouts.stat().st_size:
        raise ConfigError(
            f"{paths.rollouts} holds results, and {paths.run} is missing, which says what they are results of: a run "
            "can only be resumed with it. Choose another --output, or add --overwrite instead of --resume."
        )
    return None


class RunFiles:
    """Plan, configuration and record of one run. ``before`` is its record when it is resumed."""

    def __init__(
        self,
        paths: ResultPaths,
        planned: PlannedRun,
        config: Mapping[str, Any],
        options: RunOptions,
        registry_url: str | None,
        before: RunRecord | None,
    ) -> None:
        self._paths = paths
        self._planned = planned
        self._before = before
        self._config_text = config_as_yaml(config)
        self._config = parse_yaml_dict(self._config_text, str(paths.config))
        secrets = find_secrets(config)
        self._segment = Segment(
            started=now_utc(),
            command=[redact_text(word, secrets) for word in options.command],
            concurrency=options.concurrency,
            versions=_versions(),
            host=_host(),
        )
        self.record = RunRecord(
            run_id=options.run_id or uuid.uuid4().hex[:12],
            benchmark=planned.plan.benchmark.name,
            command=self._segment.command,
            versions=self._segment.versions,
            host=self._segment.host,
            plan_digest=plan_digest(planned.plan),
            config_digest=config_digest(self._config),
            num_repeats=planned.num_repeats,
            shard=options.shard,
            registry=registry_url,
        )
        if before is not None:
            self._refuse_differences(before, options)
            self.record = before
            self.record.num_repeats = planned.num_repeats

    def begin(self, servers: OpenServers) -> None:
        """Write what is known now that the servers are there and rollouts are about to begin."""
        record = self.record
        if self._before is None:
            write_whole(self._paths.plan, self._planned.plan.to_json())
            write_whole(self._paths.config, self._config_text)
        elif record.segments and record.segments[-1].status == RUNNING:
            record.segments[-1].status = KILLED
        number = len(record.segments)
        record.segments.append(self._segment)
        record.timeline.extend({"segment": number, **part} for part in servers.timeline)
        self.write()
        try:
            write_json_lines(self._paths.materialized_inputs, self._planned.rows)
        except OSError as error:
            raise NemoGymError(f"cannot write {self._paths.materialized_inputs}: {error.strerror or error}.") from error

    def note_engine(self, version: str) -> None:
        """The engine's version, once it is known."""
        self._segment.versions["docker_engine"] = version

    def note_concurrency(self, concurrency: int) -> None:
        """How many rollouts there are at a time, where that is not what was asked for."""
        self._segment.concurrency = concurrency

    def count(self, attempt: Attempt) -> None:
        """One more attempt has ended."""
        self._segment.attempts += 1
        if attempt.outcome.failure is None:
            self._segment.scored += 1
        elif attempt.final:
            self._segment.failed += 1

    def end(self, status: str, reason: str | None, phases: Phases) -> None:
        """Write how the segment ended. May be called again as more is known of it.

        A record that cannot be written is warned of: what ended the segment is to be told, and not that.
        """
        if not any(segment is self._segment for segment in self.record.segments):
            return  # it never began
        self._segment.status, self._segment.reason = status, reason
        self._segment.ended = now_utc()
        self._segment.phases_s = phases.rounded()
        try:
            if self._paths.image_lock.is_file():
                self.record.image_lock_digest = read_lock(self._paths.image_lock).digest()
            self.write()
        except ConfigError as error:
            logger.warning("how the run ended is not recorded: %s", error)

    def write(self) -> None:
        """Write the record as it is now."""
        write_whole(self._paths.run, self.record.to_json())

    def images_to_keep_to(self, locked: str | None) -> Path | None:
        """The lock file that a resumed run's images must not differ from. ``locked``: one that is asked for."""
        own = self._paths.image_lock
        if self._before is None or not own.is_file():
            return None
        if locked is not None and (asked := read_lock(Path(locked))).digest() != read_lock(own).digest():
            names = ", ".join(_differing_images(asked, read_lock(own)))
            raise ConfigError(f"The images of the lock file {locked} are not those of this run ({own}): {names}.")
        return own

    def _refuse_differences(self, before: RunRecord, options: RunOptions) -> None:
        found: list[str] = []
        now = self.record
        if before.plan_digest != now.plan_digest:
            plan = EvalPlan.from_json(self._read(self._paths.plan))
            found.append(f"the tasks: {describe_difference(plan, self._planned.plan) or 'their order'}")
        if before.shard != now.shard:
            found.append(f"the shard: it was {before.shard or 'none'} and is {now.shard or 'none'}")
        if before.registry is None and now.registry is not None:
            found.append("the servers: they were started for the run, and --no-serve asks for others")
        if before.registry is not None and now.registry is None:
            found.append("the servers: they ran already (--no-serve), and now are to be started")
        if before.config_digest != now.config_digest:
            stored = parse_yaml_dict(self._read(self._paths.config), str(self._paths.config))
            keys = differing_keys(stored, self._config)
            found.append(f"the configuration: {', '.join(keys) or 'it was written by another version'}")
        if options.run_id is not None and options.run_id != before.run_id:
            found.append(f"the run's id: it is {before.run_id}, and --run-id asks for {options.run_id}")
        if found:
            listed = "\n".join(f"- {difference}" for difference in found)
            raise ConfigError(
                f"{self._paths.rollouts} cannot be resumed: what is to be run now is not what was run before.\n{listed}"
                f"\nGive the options of the command that began it, which stands in {self._paths.run}, or run what is "
                "new under another --output. Endpoints, keys, ports, timeouts, limits of containers, --concurrency "
                "and more --num-repeats may change."
            )

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise ConfigError(f"Cannot read {path}, which a run needs to be resumed: {error.strerror}.") from error


def _differing_images(asked: ImageLock, own: ImageLock) -> list[str]:
    told = [{image.name: image.context or image.image_id for image in lock.images} for lock in (asked, own)]
    return sorted(name for name in told[0].keys() | told[1].keys() if told[0].get(name) != told[1].get(name))


def _versions() -> dict[str, Any]:
    return {
        "nemo_gym": nemo_gym.__version__,
        "commit": gym_commit(),
        "python": platform.python_version(),
        "docker_engine": None,
        **{name: metadata.version(name) for name in _LIBRARIES},
    }


def _host() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "name": platform.node(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
