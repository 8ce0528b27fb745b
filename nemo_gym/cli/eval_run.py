"""``gym eval run``: plan, serve, run every row, and show what came of it."""

from __future__ import annotations

import contextlib
import logging
import re
import resource
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import ConfigRequest
from nemo_gym.cli.image_progress import show_image_progress
from nemo_gym.cli.output import emit_json, note, write_whole
from nemo_gym.cli.planning import prepare_and_collate
from nemo_gym.cli.progress import show_progress
from nemo_gym.cli.run_report import emit_report
from nemo_gym.cli.stopping import run_async
from nemo_gym.config.redaction import find_secrets, redact_text
from nemo_gym.config.resolve import to_plain
from nemo_gym.config.task_ids import task_id_of_row
from nemo_gym.environment.serving import serve
from nemo_gym.errors import NemoGymError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.records import OBSERVABILITY, RecordCollector
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Failure
from nemo_gym.rollouts.report import RunTally, report
from nemo_gym.rollouts.results import (
    ResultPaths,
    ResultWriter,
    agents_of,
    read_results,
    write_aggregate_metrics,
    write_json_lines,
)
from nemo_gym.rollouts.rows import TASK_INDEX, find_agent_name, repeated_rows
from nemo_gym.rollouts.run import Attempt, run_rows

if TYPE_CHECKING:
    from nemo_gym.deployment.launch import RunningSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunOptions:
    """What is asked of a run, beside the configuration."""

    output: Path | None = None
    overwrite: bool = False
    limit: int | None = None
    task_ids: Sequence[str] | None = None
    num_repeats: int | None = None
    concurrency: int = 32
    registry_port: int | None = None
    as_json: bool = False
    verbose: bool = False


@dataclass
class _Phases:
    """How long each part of the run took."""

    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[phase] = time.monotonic() - started

    def line(self) -> str:
        total = sum(self.seconds.values())
        split = ", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in self.seconds.items())
        return f"time: {split}; {total:.1f} s in all"


def run_benchmark(request: ConfigRequest, options: RunOptions) -> int:
    """Run a benchmark and return the exit code: 0 when every rollout has a reward, else 1."""
    phases = _Phases()
    paths = ResultPaths(options.output or _default_output(request))
    paths.check(overwrite=options.overwrite)
    # A key or a model type that serving would miss is told before any data is fetched.
    config = to_plain(request.load_for_serving())
    with phases.measure("prepare"):
        rows = _plan_rows(request, options)
    run = _Run(paths, rows, options, config)
    try:
        _serve_and_run(request, options, run, phases)
    finally:
        # Also when the teardown fails: the results are there all the same.
        if run.ended:
            _show(run, options, phases)
        note(phases.line())
        run.tell_what_is_kept()
    return run.exit_code()


def _show(run: _Run, options: RunOptions, phases: _Phases) -> None:
    figures = report(run.tally, run.key_metrics)
    if options.as_json:
        files = {name: str(path) for name, path in run.files().items()}
        emit_json({**figures, "phases_s": phases.seconds, "files": files})
    else:
        emit_report(run.tally, figures, run.files())


def _serve_and_run(request: ConfigRequest, options: RunOptions, run: _Run, phases: _Phases) -> None:
    started = time.monotonic()
    serving = serve(
        request.serving_paths(),
        request.overrides,
        registry_port=options.registry_port,
        search_dirs=request.search_dirs,
    )
    with show_image_progress(), _measured_exit(serving, phases) as session:
        _note_start(session, time.monotonic() - started, phases)
        run.paths.clear()
        with phases.measure("run"), _images_recorded(session, run.paths.image_lock):
            run_async(run.execute(_address(session)))


@contextlib.contextmanager
def _measured_exit(
    serving: contextlib.AbstractContextManager[RunningSession], phases: _Phases
) -> Iterator[RunningSession]:
    """``serving``, with the time it takes to end noted as the teardown."""
    ended: float | None = None
    try:
        with serving as session:
            try:
                yield session
            finally:
                ended = time.monotonic()
    finally:
        if ended is not None:
            phases.seconds["teardown"] = time.monotonic() - ended


def _note_start(session: RunningSession, seconds: float, phases: _Phases) -> None:
    """Split what it took to serve into images and the rest."""
    images = sum(part.end_s - part.begin_s for part in session.timeline if part.phase == "images" and not part.server)
    phases.seconds["images"] = images
    phases.seconds["start"] = seconds - images
    for part in session.timeline:
        logger.debug("%s %s: %.3f s to %.3f s", part.phase, part.server or "(all)", part.begin_s, part.end_s)


@contextlib.contextmanager
def _images_recorded(session: RunningSession, path: Path) -> Iterator[None]:
    """Write the lock file of a session's images beside the block; a run does not fail because it cannot be."""

    def record() -> None:
        from nemo_gym.deployment.image_commands import connected
        from nemo_gym.deployment.locked_images import lock_images

        try:
            with connected() as engine:
                write_whole(path, lock_images(engine, session.images).to_json())
        except NemoGymError as error:
            logger.warning("what the images hold is not recorded in %s: %s", path, error)

    if not session.images:
        yield
        return
    with ThreadPoolExecutor(1, thread_name_prefix="nemo-gym-image-lock") as pool:
        pool.submit(record)
        yield


def _address(session: RunningSession) -> RegistryAddress:
    registry = session.registry_server
    return RegistryAddress(registry.host, registry.port, registry.token)


def _plan_rows(request: ConfigRequest, options: RunOptions) -> list[dict[str, Any]]:
    """The rows to run, in order."""
    config = request.load_for_planning()
    rows = prepare_and_collate(config, options.task_ids, keep_rows=True).rows
    first_rows: dict[str, dict[str, Any]] = {}
    for row in rows:
        first_rows.setdefault(_task_id(row), row)
    kept = dict(list(first_rows.items())[: options.limit])
    if options.num_repeats is not None:
        return repeated_rows(kept.values(), options.num_repeats)
    return [row for row in rows if _task_id(row) in kept]


def _task_id(row: Mapping[str, Any]) -> str:
    return task_id_of_row(row, row[TASK_INDEX])


def _default_output(request: ConfigRequest) -> Path:
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", request.benchmark or "run")
    return Path("results", f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.jsonl")


class _Run:
    """One run over servers that are up."""

    def __init__(
        self, paths: ResultPaths, rows: list[dict[str, Any]], options: RunOptions, config: Mapping[str, Any]
    ) -> None:
        self.paths = paths
        self._rows = rows
        self._options = options
        self._secrets = find_secrets(config)
        self._records = bool(config.get(OBSERVABILITY))
        self._stopped_by: Failure | None = None
        self.ended = False
        self.tally = RunTally(total=len(rows), name_task=_task_id)
        self.key_metrics: dict[str, Any] = {}

    async def execute(self, registry: RegistryAddress) -> None:
        """Run every row and write the files. Whatever ends it, the results so far are kept, in order."""
        _allow_connections(self._options.concurrency)
        write_json_lines(self.paths.materialized_inputs, self._rows)
        helper = RolloutCollectionHelper()
        with ResultWriter(self.paths, self._redact) as writer:
            try:
                async with self._recording(helper, registry) as collector:
                    await self._run_all(helper, registry, writer, collector)
            finally:
                writer.finish()
        if self._stopped_by is None:
            await self._aggregate(helper, registry)
        await helper.aclose()
        self.ended = True

    def _recording(
        self, helper: RolloutCollectionHelper, registry: RegistryAddress
    ) -> contextlib.AbstractAsyncContextManager[RecordCollector | None]:
        """What keeps the servers' records of each rollout, where they keep any."""
        if not self._records:
            return contextlib.nullcontext()
        return RecordCollector(helper, registry, self.paths.records)

    async def _run_all(
        self,
        helper: RolloutCollectionHelper,
        registry: RegistryAddress,
        writer: ResultWriter,
        collector: RecordCollector | None,
    ) -> None:
        with show_progress(self.tally) as progress:

            def take(attempt: Attempt) -> None:
                writer.add(attempt)
                if collector is not None:
                    collector.add(attempt)
                self.tally.add(attempt)
                self._tell_failure(attempt)
                progress.update()

            self._stopped_by = await run_rows(
                helper,
                registry,
                self._rows,
                run_id=uuid.uuid4().hex[:12],
                concurrency=self._options.concurrency,
                on_attempt=take,
            )

    async def _aggregate(self, helper: RolloutCollectionHelper, registry: RegistryAddress) -> None:
        replies: dict[str, dict[str, Any]] = {}
        for agent in agents_of(self._rows):
            results = [result for result in read_results(self.paths.rollouts) if find_agent_name(result) == agent]
            if not results:
                continue
            reply = await helper.aggregate_metrics(registry, agent, results)
            if isinstance(reply, Failure):
                logger.warning("no metrics of %s's own: it %s", agent, self._redact(reply.reason))
                continue
            replies[agent] = reply
            metrics = reply.get("key_metrics")
            if isinstance(metrics, Mapping):
                self.key_metrics.update(metrics)
        if replies:
            write_aggregate_metrics(self.paths.aggregate_metrics, replies)

    def exit_code(self) -> int:
        """0 when every rollout has a reward."""
        if self._stopped_by is not None:
            failure = self._stopped_by
            note(f"gym: failed: server {failure.server!r} {self._redact(failure.reason)} The run ended there.")
            return 1
        if self.tally.failures:
            note(f"gym: failed: {self.tally.failures} of {self.tally.total} rollouts have no reward.")
            return 1
        return 0

    def files(self) -> dict[str, Path]:
        """The result files that were written, by what they hold."""
        named = {
            "rollouts": self.paths.rollouts,
            "failures": self.paths.failures,
            "inputs": self.paths.materialized_inputs,
            "metrics": self.paths.aggregate_metrics,
            "images": self.paths.image_lock,
            "records": self.paths.records,
        }
        return {name: path for name, path in named.items() if path.is_file()}

    def tell_what_is_kept(self) -> None:
        """After a run that ended early: how much of it is kept."""
        if 0 < self.tally.done < self.tally.total:
            note(f"{self.tally.scored} of {self.tally.total} rollouts are in {self.paths.rollouts}")

    def _tell_failure(self, attempt: Attempt) -> None:
        failure = attempt.outcome.failure
        if failure is None or failure.ends_the_run:
            return
        what = "failed" if attempt.final else "is tried again"
        message = f"task {_task_id(attempt.row)} {what}: server {failure.server!r} {failure.reason}"
        level = logging.WARNING if attempt.final and self.tally.failures <= 5 else logging.DEBUG
        logger.log(level, "%s", self._redact(message))

    def _redact(self, text: str) -> str:
        return redact_text(text, self._secrets)


def _allow_connections(concurrency: int) -> None:
    """Raise this process's limit of open files where its concurrency needs more than the soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = concurrency + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
