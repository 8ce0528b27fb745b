"""``gym eval run``: plan, serve, run every row, and show what came of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nemo_gym.cli.arguments import ConfigRequest
from nemo_gym.cli.concurrency import concurrency_here
from nemo_gym.cli.output import StdoutClosedError, StdoutFailedError, emit_json, note
from nemo_gym.cli.progress import show_progress
from nemo_gym.cli.run_files import RunFiles, find_run_to_resume, held
from nemo_gym.cli.run_plan import PlannedRun, RunOptions, plan_run
from nemo_gym.cli.run_report import emit_report
from nemo_gym.cli.run_servers import OpenServers, OwnServers, Phases, RunningServers, Servers, images_recorded
from nemo_gym.cli.stopping import Stopped, run_async
from nemo_gym.config.redaction import find_secrets, redact_text
from nemo_gym.errors import NemoGymError
from nemo_gym.rollouts.collection import RolloutCollectionHelper
from nemo_gym.rollouts.provenance import DRAINED, FAILED, FINISHED, STOPPED
from nemo_gym.rollouts.records import OBSERVABILITY, RecordCollector
from nemo_gym.rollouts.registry_client import RegistryAddress
from nemo_gym.rollouts.replies import Failure
from nemo_gym.rollouts.report import RunTally, report
from nemo_gym.rollouts.results import (
    ResultPaths,
    ResultWriter,
    agents_of,
    read_aggregate_metrics,
    read_results,
    write_aggregate_metrics,
)
from nemo_gym.rollouts.resume import Earlier, load_earlier
from nemo_gym.rollouts.rows import find_agent_name, row_key
from nemo_gym.rollouts.run import Attempt, run_rows

logger = logging.getLogger(__name__)

__all__ = ["RunOptions", "run_benchmark"]


def run_benchmark(request: ConfigRequest, options: RunOptions) -> int:
    """Run a benchmark and return the exit code: 0 when every rollout has a reward, else 1."""
    paths = ResultPaths(options.rollouts_path(request.benchmark))
    if options.resume:
        paths.check_folder()
    else:
        paths.check(overwrite=options.overwrite)
    with held(paths):
        return _run_held(request, options, paths)


def _run_held(request: ConfigRequest, options: RunOptions, paths: ResultPaths) -> int:
    phases = Phases()
    before = find_run_to_resume(paths) if options.resume else None
    servers: Servers = (
        OwnServers(request, options.registry_port) if options.registry is None else RunningServers(options.registry)
    )
    with phases.measure("prepare"):
        planned = plan_run(request, options, before)
        servers.check(agents_of(planned.rows))
    files = RunFiles(paths, planned, servers.config, options, servers.registry_url, before)
    tally = RunTally(total=len(planned.rows), name_task=planned.name_task)
    earlier = Earlier()
    if before is not None:
        earlier = load_earlier(paths, {row_key(row) for row in planned.rows}, tally)
        _tell_earlier(earlier, tally, paths)
    elif options.resume:
        note(f"There is nothing to resume in {paths.rollouts} yet: the run begins.")
    run = _Run(paths, planned, options, servers.config, files, tally, earlier)
    if before is not None and before.is_finished and tally.scored == tally.total:
        note("The run is finished: there is nothing to do.")
        run.load_key_metrics()
        _show(run, options, phases)
        return 0
    try:
        _serve_and_run(servers, run, phases, request.overrides.get("image_lock"))
    except BaseException:
        # Also when the teardown fails: the results are there all the same.
        with contextlib.suppress(StdoutClosedError, StdoutFailedError):  # what ended the run is what counts
            _sum_up(run, options, phases)
        raise
    _sum_up(run, options, phases)
    return run.exit_code()


def _sum_up(run: _Run, options: RunOptions, phases: Phases) -> None:
    run.provenance.end(run.status, run.reason, phases)
    try:
        if run.ended:
            _show(run, options, phases)
    finally:
        note(phases.line())
        run.tell_what_is_kept()


def _tell_earlier(earlier: Earlier, tally: RunTally, paths: ResultPaths) -> None:
    for notice in earlier.notices:
        note(notice)
    note(f"Resuming {paths.rollouts}: {tally.scored} of {tally.total} rollouts have a reward already.")


def _show(run: _Run, options: RunOptions, phases: Phases) -> None:
    figures = report(run.tally, run.key_metrics)
    if options.as_json:
        files = {name: str(path) for name, path in run.paths.existing().items()}
        emit_json({**figures, "phases_s": phases.seconds, "files": files})
    else:
        emit_report(run.tally, figures, run.paths.existing())


def _serve_and_run(servers: Servers, run: _Run, phases: Phases, locked: str | None) -> None:
    image_lock = run.provenance.images_to_keep_to(locked)
    if image_lock is not None:
        note(f"Serving from the images that the run began with, and no others: {image_lock}.")
    with servers.open(phases, image_lock) as opened, _status_noted(run, phases), phases.measure("run"):
        run.begin(opened)
        with images_recorded(opened.images, run.paths.image_lock, run.provenance.note_engine):
            run_async(run.execute(opened.registry), drain=run.drain)


@contextlib.contextmanager
def _status_noted(run: _Run, phases: Phases) -> Iterator[None]:
    """How the block ends is how the run has ended; it is written before the servers are stopped."""
    try:
        yield
    except Stopped as stopped:
        run.status, run.reason = DRAINED if run.ended else STOPPED, str(stopped)
        raise
    except BaseException as error:
        run.status, run.reason = FAILED, run.redact(str(error) or type(error).__name__)
        raise
    finally:
        run.provenance.end(run.status, run.reason, phases)


class _Run:
    """One run over servers that are up."""

    def __init__(
        self,
        paths: ResultPaths,
        planned: PlannedRun,
        options: RunOptions,
        config: Mapping[str, Any],
        provenance: RunFiles,
        tally: RunTally,
        earlier: Earlier,
    ) -> None:
        self.paths = paths
        self.provenance = provenance
        self.tally = tally
        self.key_metrics: dict[str, Any] = {}
        self.ended = False
        self.status = FINISHED
        self.reason: str | None = None
        self._planned = planned
        self._options = options
        self._earlier = earlier
        self._secrets = find_secrets(config)
        self._records = bool(config.get(OBSERVABILITY))
        self._stopped_by: Failure | None = None
        self._drain = asyncio.Event()
        self._is_running_rows = False

    def begin(self, servers: OpenServers) -> None:
        """Nothing has gone wrong until here: what an earlier run has left goes, unless it is resumed."""
        if not self._options.resume or not self.paths.run.is_file():
            self.paths.clear()
        self.paths.aggregate_metrics.unlink(missing_ok=True)  # of fewer results than there will be
        self.provenance.begin(servers)

    def drain(self) -> bool:
        """Begin no further rollout. False when there is nothing to wait for, or this was asked before."""
        if not self._is_running_rows or self._drain.is_set():
            return False
        self._drain.set()
        note("Stopping: no further rollout begins, and those under way are finished. Ctrl-C again stops at once.")
        return True

    async def execute(self, registry: RegistryAddress) -> None:
        """Run every row and write the files. Whatever ends it, the results so far are kept, in order."""
        helper = RolloutCollectionHelper()
        lines = {"rollouts": self._earlier.rollouts, "failures": self._earlier.failures}
        with ResultWriter(self.paths, self.redact, **lines) as writer:
            try:
                async with self._recording(helper, registry) as collector:
                    await self._run_all(helper, registry, writer, collector)
            except BaseException:
                with contextlib.suppress(NemoGymError):  # the disk is full, say: what ended the run is what counts
                    writer.finish()
                raise
            writer.finish()
        if self._stopped_by is None and self.tally.done == self.tally.total:
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
        pending = [row for row in self._planned.rows if row_key(row) not in self._earlier.scored]
        concurrency = concurrency_here(self._options.concurrency, await helper.get_host_view(registry), len(pending))
        self.provenance.note_concurrency(concurrency)
        with show_progress(self.tally) as progress:

            def take(attempt: Attempt) -> None:
                writer.add(attempt)
                if collector is not None:
                    collector.add(attempt)
                self.tally.add(attempt)
                self.provenance.count(attempt)
                self._tell_failure(attempt)
                progress.update()

            self._is_running_rows = True
            try:
                self._stopped_by = await run_rows(
                    helper,
                    registry,
                    pending,
                    run_id=self.provenance.record.run_id,
                    concurrency=concurrency,
                    on_attempt=take,
                    tried=self._earlier.tried,
                    drain=self._drain,
                )
            finally:
                self._is_running_rows = False
        if self._stopped_by is not None:
            failure = self._stopped_by
            self.status, self.reason = FAILED, self.redact(f"server {failure.server!r} {failure.reason}")

    async def _aggregate(self, helper: RolloutCollectionHelper, registry: RegistryAddress) -> None:
        replies: dict[str, dict[str, Any]] = {}
        for agent in agents_of(self._planned.rows):
            results = (result for result in read_results(self.paths.rollouts) if find_agent_name(result) == agent)
            first = next(results, None)
            if first is None:
                continue
            reply = await helper.aggregate_metrics(registry, agent, itertools.chain([first], results))
            if isinstance(reply, Failure):
                logger.warning("no metrics of %s's own: it %s", agent, self.redact(reply.reason))
                continue
            replies[agent] = reply
        if replies:
            write_aggregate_metrics(self.paths.aggregate_metrics, replies)
        self._take_key_metrics(replies.values())

    def load_key_metrics(self) -> None:
        """The key metrics that an earlier segment has written."""
        self._take_key_metrics(read_aggregate_metrics(self.paths.aggregate_metrics))

    def _take_key_metrics(self, replies: Iterable[Mapping[str, Any]]) -> None:
        for reply in replies:
            metrics = reply.get("key_metrics")
            if isinstance(metrics, Mapping):
                self.key_metrics.update(metrics)

    def exit_code(self) -> int:
        """0 when every rollout has a reward."""
        if self._stopped_by is not None:
            note(f"gym: failed: {self.reason} The run ended there.")
            return 1
        if self.tally.failures:
            note(f"gym: failed: {self.tally.failures} of {self.tally.total} rollouts have no reward.")
            return 1
        return 0

    def tell_what_is_kept(self) -> None:
        """After a run that ended early: how much of it is kept, and how it goes on."""
        if self.tally.done < self.tally.total and self.paths.run.is_file():
            note(
                f"{self.tally.scored} of {self.tally.total} rollouts are in {self.paths.rollouts}; the same command "
                "with --resume goes on."
            )
        elif self.tally.failures:
            note("The same command with --resume tries again those that failed.")

    def _tell_failure(self, attempt: Attempt) -> None:
        failure = attempt.outcome.failure
        if failure is None or failure.ends_the_run:
            return
        what = "failed" if attempt.final else "is tried again"
        task = self._planned.name_task(attempt.row)
        message = f"task {task} {what}: server {failure.server!r} {failure.reason}"
        level = logging.WARNING if attempt.final and self.tally.failures <= 5 else logging.DEBUG
        logger.log(level, "%s", self.redact(message))

    def redact(self, text: str) -> str:
        """A text without the secrets of the configuration."""
        return redact_text(text, self._secrets)
