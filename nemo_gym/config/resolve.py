"""From config files and overrides to one checked config. ``load_config`` reads; ``resolve_layers`` is pure."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nemo_gym.config.directives import expand_directives
from nemo_gym.config.instances import POLICY_MODEL
from nemo_gym.config.interpolation import BrokenReference, escape_texts, interpolate
from nemo_gym.config.merging import Layer, merge_layers
from nemo_gym.config.near_misses import list_near_misses
from nemo_gym.config.overrides import checked_overrides
from nemo_gym.config.plain import to_plain as to_plain
from nemo_gym.config.problems import ConfigFacts, is_tolerated, list_problems
from nemo_gym.config.sources import (
    checked_config_paths,
    find_config_file,
    load_config_tree,
    load_env_file,
    search_roots,
)
from nemo_gym.config.yaml_files import dump_yaml
from nemo_gym.errors import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

logger = logging.getLogger(__name__)


def load_config(
    config_paths: Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    search_dirs: Iterable[str | Path] = (),
    serving: bool,
) -> DictConfig:
    """The config that ``config_paths``, ``env.yaml`` and ``overrides`` (low to high precedence) make, checked.

    ``env.yaml`` and the overrides may have ``config_paths`` of their own; those of ``env.yaml`` rank below the
    ones given here, those of the overrides above. In the result ``config_paths`` holds the absolute paths of all
    of these entry files, no directive is left, and every interpolation can be resolved.

    A setting of the caller's that is probably misspelt is a warning in the log: it may be meant as it is.

    With ``serving=False`` (planning, preparing) ``policy_model`` may be undefined and ``???`` may stand under
    servers and ``policy_*``; so may references to them, which then are ``???`` themselves.
    """
    given = checked_overrides(overrides)
    roots = search_roots(search_dirs)
    env = load_env_file()
    env_origin, env_content = (str(env[0]), env[1]) if env is not None else ("env.yaml", {})
    entries = [
        *checked_config_paths(env_content.get("config_paths"), where=env_origin),
        *config_paths,
        *checked_config_paths(given.get("config_paths"), where="overrides"),
    ]
    layers = [Layer(str(file), content) for file, content in load_config_tree(entries, roots)]
    layers += [
        Layer(env_origin, _without_config_paths(env_content), by_caller=True),
        Layer("overrides", _without_config_paths(given), by_caller=True),
    ]
    config = resolve_layers(layers, serving=serving)
    for sentence in list_near_misses(layers):
        logger.warning("%s", sentence)
    config["config_paths"] = list(dict.fromkeys(str(find_config_file(path, roots)) for path in entries))
    return config


def _without_config_paths(content: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key != "config_paths"}


def resolve_layers(layers: Sequence[Layer], *, serving: bool) -> DictConfig:
    """Merge ``layers`` (low to high precedence), carry out their directives, and check the result.

    Pure, apart from ``${oc.env:...}``, which a config uses to ask for an environment variable. All that is wrong
    is reported in one ``ConfigError``.
    """
    merged = merge_layers([layer.content for layer in layers])
    expanded = expand_directives(
        merged,
        caller_layers=[layer.content for layer in layers if layer.by_caller],
        sketched=() if serving else (POLICY_MODEL,),
    )

    def tolerated(reference: BrokenReference) -> bool:
        return is_tolerated(reference, expanded.tree, expanded.sketched, serving=serving)

    interpolated = interpolate(expanded.tree, tolerated)
    facts = ConfigFacts(
        tree=expanded.tree,
        plain=interpolated.plain,
        broken=interpolated.broken,
        moved=expanded.moved,
        sketched=expanded.sketched,
        serving=serving,
        layers=layers,
    )
    problems = list_problems(facts)
    if len(problems) == 1:
        raise ConfigError(problems[0])
    if problems:
        listed = "\n".join("- " + problem.replace("\n", "\n  ") for problem in problems)
        raise ConfigError(f"The configuration has {len(problems)} problems:\n{listed}")
    return interpolated.config


def dump_config(plain: Mapping[str, Any]) -> str:
    """A plain resolved config as YAML that gives the same config when it is read as a config file again."""
    return dump_yaml(escape_texts(plain))
