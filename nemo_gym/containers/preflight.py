"""What stands in the way of a start, found before any work and reported at once: engine, disk, images, registries."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nemo_gym.containers import background
from nemo_gym.containers.engine import ContainerEngine, EngineState, ImageState, RemoteImage
from nemo_gym.containers.pull_failures import advice_for, find_cause
from nemo_gym.containers.references import ImageReference
from nemo_gym.errors import ConfigError, EngineError

logger = logging.getLogger(__name__)

PullPolicy = Literal["missing", "always", "never"]

LEAST_API = (1, 41)
LEAST_VERSION = "20.10"

# what an image is taken to need while its size is not known: a margin, and no measurement
PULL_BYTES = 500_000_000
BUILD_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class WantedImage:
    """An image by reference, and what to do where the engine does not have it.

    ``platform`` is what it is for; empty for the engine's own. ``wanted_by`` and ``advice`` are for messages, the
    latter for when it cannot be pulled.
    """

    reference: ImageReference
    pull_policy: PullPolicy
    wanted_by: str
    platform: str = ""
    advice: str = ""


def check_before_work(
    engine: ContainerEngine,
    wanted: Sequence[WantedImage],
    *,
    builds: int = 0,
    python: WantedImage | None = None,
    environ: Mapping[str, str],
) -> list[ImageReference]:
    """What has to be pulled, each once; ``builds`` is how many images have to be built.

    ``python`` is what they stand on, where it is missing: looked at like the others, and left to the build to pull.

    Raises one ``ConfigError`` with everything that is wrong. What a registry refuses only for the moment is not: the
    pull has the patience for that.
    """
    state = engine.read_state()
    problems = _engine_problems(state)
    wanted = [*wanted, *([python] if python is not None else [])]
    problems += _platform_conflicts(wanted)
    present = {image.reference: engine.find_image(str(image.reference)) for image in wanted}
    to_pull: dict[ImageReference, WantedImage] = {}
    for image in wanted:
        found = present[image.reference]
        if image.pull_policy == "always" or (found is None and image.pull_policy == "missing"):
            to_pull.setdefault(image.reference, image)
        else:
            problems += _present_problems(image, found, state)
    if to_pull:
        problems += _docker_config_problems(environ)
        problems += _registry_problems(engine, list(to_pull.values()), state)
    missing = sum(present[reference] is None for reference in to_pull)
    problems += _disk_problems(engine, pulls=missing, builds=builds)
    if problems:
        raise ConfigError(_report(problems))
    return [reference for reference, image in to_pull.items() if image is not python]


def named_platforms(wanted: Iterable[WantedImage]) -> dict[ImageReference, str]:
    """The platforms that are named, by image: those that are not the engine's own matter of course."""
    return {image.reference: image.platform for image in wanted if image.platform}


def _report(problems: Iterable[str]) -> str:
    each_once = list(dict.fromkeys(problems))
    if len(each_once) == 1:
        return each_once[0]
    return "\n".join([f"{len(each_once)} things stand in the way:", *(f"- {problem}" for problem in each_once)])


def _engine_problems(state: EngineState) -> list[str]:
    numbers = tuple(int(number) for number in re.findall(r"\d+", state.api_version)[:2])
    if numbers >= LEAST_API:
        return []
    return [
        (
            f"Docker engine {LEAST_VERSION} (API {'.'.join(map(str, LEAST_API))}) or newer is needed, and this one is "
            f"{state.version} (API {state.api_version}). Upgrade it, or lead DOCKER_HOST to a newer one."
        )
    ]


def _present_problems(image: WantedImage, found: ImageState | None, state: EngineState) -> list[str]:
    if found is None:
        return [
            (
                f"The image {image.reference} of {image.wanted_by} is not on the engine, and its pull_policy is never. "
                f"Type `docker pull {image.reference}`, or set pull_policy: missing."
            )
        ]
    if found.platform and found.platform != (image.platform or state.platform):
        return [_other_platform(image, found.platform, state)]
    return []


def _other_platform(image: WantedImage, platforms: str, state: EngineState) -> str:
    made_for = f"The image {image.reference} of {image.wanted_by} is made for {platforms}, and "
    if image.platform:
        return (
            f"{made_for}its image.platform is {image.platform}. Correct that, or, where only the engine's copy is for "
            f"another one, type `docker pull --platform {image.platform} {image.reference}`."
        )
    first = platforms.partition(",")[0]
    hint = image.advice or f"Where the engine emulates {first}, say so: `image: {{platform: {first}}}`."
    return (
        f"{made_for}the engine runs {state.platform}. Name an image for {state.platform}, or build one there and push "
        f"it. {hint}"
    )


def _platform_conflicts(wanted: Iterable[WantedImage]) -> list[str]:
    """An engine has one image by a reference at a time."""
    by_reference: dict[ImageReference, WantedImage] = {}
    problems = []
    for image in wanted:
        other = by_reference.setdefault(image.reference, image)
        if image.platform != other.platform:
            one, two = (each.platform or "the engine's own platform" for each in (other, image))
            problems.append(
                f"The image {image.reference} is wanted for {one} by {other.wanted_by} and for {two} by "
                f"{image.wanted_by}. Name the same image.platform in both, or each image by its own digest."
            )
    return problems


def _registry_problems(engine: ContainerEngine, images: Sequence[WantedImage], state: EngineState) -> list[str]:
    def ask(image: WantedImage) -> RemoteImage | EngineError:
        try:
            return engine.read_remote_image(str(image.reference))
        except EngineError as error:
            return error

    # a registry may take a minute to say nothing; a Ctrl-C does not wait for it
    asked = [background.start("nemo-gym-preflight", ask, image)[0] for image in images]
    answers = [future.result() for future in asked]
    problems = []
    for image, answer in zip(images, answers, strict=True):
        if isinstance(answer, RemoteImage):
            if answer.platforms and (image.platform or state.platform) not in answer.platforms:
                problems.append(_other_platform(image, ", ".join(answer.platforms), state))
            continue
        cause = find_cause(str(answer))
        if cause.is_transient:
            logger.debug("%s cannot be asked for at this moment: %s", image.reference, answer)
            continue
        advice = " ".join(filter(None, [advice_for(cause, image.reference.registry), image.advice]))
        said = str(answer).rstrip(".")
        problems.append(f"The image {image.reference} of {image.wanted_by} cannot be pulled: {said}. {advice}".rstrip())
    return problems


def _disk_problems(engine: ContainerEngine, *, pulls: int, builds: int) -> list[str]:
    """An engine elsewhere, and one whose disk this process does not see, is not judged."""
    if not engine.endpoint.is_local or not (pulls or builds):
        return []
    data_root = Path(engine.read_data_root() or os.devnull)
    if not data_root.is_dir():
        return []
    needed, free = pulls * PULL_BYTES + builds * BUILD_BYTES, shutil.disk_usage(data_root).free
    if free >= needed:
        return []
    return [
        (
            f"About {needed / 1e9:.1f} GB are needed for {pulls} images to pull and {builds} to build, and the "
            f"engine's disk ({data_root}) has {free / 1e9:.1f} GB left. See `docker system df`, and free some with "
            "`docker image prune` and `gym images prune`."
        )
    ]


def _docker_config_problems(environ: Mapping[str, str]) -> list[str]:
    """The SDK passes over a config that it cannot read, and would ask the registry without credentials."""
    folder = environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    path = Path(folder) / "config.json"
    try:
        if isinstance(json.loads(path.read_bytes()), dict):
            return []
        why = "it is no JSON object"
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        why = str(error)
    return [f"Docker's config {path}, where registry credentials stand, cannot be read ({why}). Repair or remove it."]
