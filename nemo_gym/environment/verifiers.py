"""The servers that verify, served without the agents and models that answered."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from nemo_gym.config.comparison import differing_values
from nemo_gym.config.config_types import ServerInstance, find_server_refs, parse_server_instances
from nemo_gym.errors import ConfigError
from nemo_gym.rollouts.registry_client import RegistryAddress, base_url
from nemo_gym.rollouts.verification import Verifier

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from nemo_gym.deployment.launch import RunningSession

_AGENTS: Final = "responses_api_agents"
_RESOURCES: Final = "resources_servers"
_MISSING: Final = "???"


@dataclass(frozen=True, slots=True)
class VerifierConfig:
    """A config that holds verifiers, and the servers they call, alone.

    ``verifier_of_agent`` names the resources server that verifies an agent's rollouts, ``others`` the further servers
    that this takes: a judge's model, say.
    """

    config: dict[str, Any]
    verifier_of_agent: dict[str, str]
    others: tuple[str, ...]


def verifier_config(config: Mapping[str, Any], agents: Collection[str]) -> VerifierConfig:
    """What of a resolved config verifies the rollouts of ``agents``. Pure.

    ``ConfigError``: an agent is not in the config, has no resources server, or something it takes is still to be set.
    """
    instances = {instance.name: instance for instance in parse_server_instances(config)}
    verifiers = {agent: _verifier_of(agent, instances) for agent in sorted(agents)}
    needed = _needed(set(verifiers.values()), instances)
    kept = {name: value for name, value in config.items() if name not in instances or name in needed}
    _check_set(kept, needed)
    others = tuple(sorted(needed - set(verifiers.values())))
    return VerifierConfig({k: v for k, v in kept.items() if v != _MISSING}, verifiers, others)


def differing_settings(stored: Mapping[str, Any], now: VerifierConfig) -> dict[str, tuple[str | None, str | None]]:
    """In which settings the verifiers differ from those of a stored config, by dotted path, as JSON."""
    names = {*now.verifier_of_agent.values(), *now.others}
    before = {name: value for name, value in stored.items() if name in names}
    return differing_values(before, {name: value for name, value in now.config.items() if name in names})


@contextlib.contextmanager
def serve_verifiers(
    config: DictConfig, found: VerifierConfig, search_dirs: Sequence[str] = ()
) -> Iterator[tuple[RunningSession, dict[str, Verifier]]]:
    """Start the servers of ``found``, a part of ``config``; yields the session, and the verifier of each agent."""
    from nemo_gym.config.process_config import process_config
    from nemo_gym.deployment.launch import serve_config

    with (
        process_config(config, serving=True),
        serve_config(found.config, search_dirs=search_dirs) as session,
    ):
        registry = session.registry_server
        address = RegistryAddress(registry.host, registry.port, registry.token)
        published = {server.name: server for server in session.servers}

        def verifier(name: str) -> Verifier:
            server = published[name]
            if server.host is None or server.port is None:  # on the internal network
                return Verifier(name, f"{address.url}/inside/{name}", address.headers)
            return Verifier(name, base_url(server.host, server.port), address.headers)

        yield session, {agent: verifier(name) for agent, name in found.verifier_of_agent.items()}


def _verifier_of(agent: str, instances: Mapping[str, ServerInstance]) -> str:
    instance = instances.get(agent)
    if instance is None or instance.server_type != _AGENTS:
        known = sorted(name for name, found in instances.items() if found.server_type == _AGENTS)
        near = difflib.get_close_matches(agent, known, n=1)
        hint = f"Did you mean the benchmark of {near[0]!r}?" if near else f"It has {', '.join(known) or 'none'}."
        raise ConfigError(
            f"The results come from the agent {agent!r}, which this configuration does not have. {hint} Give the "
            "--benchmark, --config and --search-dir of the run."
        )
    for ref in find_server_refs(instance.settings):
        if ref.type == _RESOURCES and ref.name in instances:
            return ref.name
    raise ConfigError(f"The agent {agent!r} names no resources server, so that nothing here verifies its rollouts.")


def _needed(verifiers: set[str], instances: Mapping[str, ServerInstance]) -> set[str]:
    needed, pending = set(verifiers), sorted(verifiers)
    while pending:
        name = pending.pop()
        for ref in find_server_refs(instances[name].settings):
            if ref.name not in instances:
                raise ConfigError(
                    f"The server {name!r} calls {ref.name!r}, which this configuration does not have. Say which model "
                    "it is: --model-type, --model, --model-url and --model-api-key, as for gym eval run."
                )
            if ref.name not in needed:
                needed.add(ref.name)
                pending.append(ref.name)
    return needed


def _check_set(kept: Mapping[str, Any], needed: Collection[str]) -> None:
    missing = [f"{name}.{path}" for name in sorted(needed) for path in _missing(kept[name])]
    if not missing:
        return
    open_keys = sorted(key for key, value in kept.items() if value == _MISSING and not key.startswith("policy_"))
    hint = " ".join(f"{key}=..." for key in open_keys) or f"{missing[0]}=..."
    raise ConfigError(f"To verify, these settings are still to be set: {', '.join(missing)}. Give {hint}")


def _missing(node: Any, path: str = "") -> Iterator[str]:
    if isinstance(node, Mapping):
        for key, value in node.items():
            yield from _missing(value, f"{path}.{key}" if path else str(key))
    elif node == _MISSING:
        yield path
