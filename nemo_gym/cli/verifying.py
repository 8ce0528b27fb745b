"""What ``gym eval aggregate`` and ``gym eval reverify`` share: verifiers served for results that are there already."""

from __future__ import annotations

import argparse
import contextlib
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.cli.arguments import (
    ConfigRequest,
    add_config_options,
    add_model_options,
)
from nemo_gym.cli.output import note
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from nemo_gym.environment.stored_runs import StoredRun
    from nemo_gym.rollouts.results import ResultPaths
    from nemo_gym.rollouts.verification import Verifier, VerifierClient

logger = logging.getLogger(__name__)

_MODEL_OPTIONS = ("model_type", "model", "model_url", "model_api_key")


@dataclass(frozen=True)
class ServedVerifiers:
    """Verifiers that run: by agent, the secrets of their configuration, and the images that they run from."""

    of_agent: Mapping[str, Verifier]
    secrets: set[str]
    images: Mapping[str, str]
    differing_settings: Mapping[str, tuple[str | None, str | None]]

    def redact(self, text: str) -> str:
        """A text without those secrets."""
        from nemo_gym.config.redaction import redact_text

        return redact_text(text, self.secrets)


def add_verifier_options(parser: argparse.ArgumentParser) -> None:
    """What says which verifiers are meant; all of it is optional for results that say where they come from."""
    add_config_options(parser)
    add_model_options(parser, serves=False)


@contextlib.contextmanager
def served_verifiers(arguments: argparse.Namespace, run: StoredRun, agents: set[str]) -> Iterator[ServedVerifiers]:
    """Serve the verifiers of these agents, from the configuration as it is now, until the block ends."""
    from nemo_gym.cli.image_progress import show_image_progress
    from nemo_gym.config.redaction import find_secrets
    from nemo_gym.config.resolve import to_plain
    from nemo_gym.environment.verifiers import differing_settings, serve_verifiers, verifier_config

    if "" in agents:
        raise ConfigError(
            f"Results in {run.paths.rollouts} do not say which agent they come from (agent_ref), so that it cannot be "
            "told who verifies them."
        )
    config = _load_config(arguments, run)
    plain = to_plain(config)
    found = verifier_config(plain, agents)
    differing = {} if run.config is None else differing_settings(run.config, found)
    for key, (before, now) in differing.items():
        note(f"The verifier is set otherwise than in the run: {key} was {before}, is {now}.")
    if found.others:
        note(f"To verify takes more than the verifier: {', '.join(found.others)} is started too.")
    with (
        show_image_progress(),
        serve_verifiers(config, found, arguments.search_dir) as (session, verifiers),
    ):
        yield ServedVerifiers(verifiers, find_secrets(plain), dict(session.images), differing)


async def write_metrics(client: VerifierClient, served: ServedVerifiers, paths: ResultPaths) -> list[str]:
    """Ask the verifiers for their own metrics over all results, and write them; returns what went wrong."""
    from nemo_gym.rollouts.replies import Failure
    from nemo_gym.rollouts.results import write_aggregate_metrics
    from nemo_gym.rollouts.reverify import replies_of

    replies: dict[str, dict[str, Any]] = {}
    problems = []
    for agent, verifier in served.of_agent.items():
        only = agent if len(served.of_agent) > 1 else ""
        reply = await client.aggregate(verifier, replies_of(paths, only, []))
        if isinstance(reply, Failure):
            problems.append(f"no metrics of {verifier.name}'s own: it {served.redact(reply.reason)}")
        else:
            replies[agent] = reply
    if replies:
        write_aggregate_metrics(paths.aggregate_metrics, replies)
    return problems


def checked_output(path: Path, sources: list[Path], *, overwrite: bool) -> ResultPaths:
    """Where new results go: never onto those that they are made from."""
    from nemo_gym.rollouts.results import ResultPaths

    output = ResultPaths(path)
    written = {file.resolve() for file in output.all()}
    for source in sources:
        for file in ResultPaths(source).all():
            if file.resolve() in written:
                raise ConfigError(f"--output {path} would replace {file}, which is read. Choose another.")
    output.check(overwrite=overwrite)
    return output


def _load_config(arguments: argparse.Namespace, run: StoredRun) -> Any:
    if arguments.benchmark is None and not arguments.config:
        if run.benchmark is None:
            raise ConfigError(
                f"{run.paths.rollouts} does not say which benchmark it is of. Give it: --benchmark NAME (`gym list "
                "benchmarks` lists what there is)."
            )
        arguments.benchmark = run.benchmark
    request = ConfigRequest.from_arguments(arguments)
    # a verifier calls the policy model in a few benchmarks only, and then it must be said which that is
    asks_for_model = any(getattr(arguments, option) is not None for option in _MODEL_OPTIONS)
    return request.load_for_serving() if asks_for_model else request.load_for_planning()
