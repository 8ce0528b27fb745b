"""Where every SDK, HTTP and socket error becomes one of ``nemo_gym.errors``, with the original as its cause."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import docker.errors
import requests
import urllib3

from nemo_gym.errors import (
    EngineError,
    EngineNotFoundError,
    EngineUnavailableError,
    NoAddressRangeError,
    PortTakenError,
)

_P = ParamSpec("_P")
_T = TypeVar("_T")

# Texts of moby's libnetwork and of the kernel for a host port that is in use (engine 20.10 to 28).
_PORT_TAKEN = ("port is already allocated", "address already in use", "failed to bind host port")
_NO_ADDRESSES = "non-overlapping IPv4 address pool"


def translated(call: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let no SDK error out of a verb."""

    @functools.wraps(call)
    def translated(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        try:
            return call(*args, **kwargs)
        except docker.errors.APIError as error:
            raise engine_error(error) from error
        except (
            docker.errors.DockerException,
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
        ) as error:
            raise EngineUnavailableError(
                f"The container engine stopped answering ({type(error).__name__}: {error}). "
                "Check it with `docker info`, then try again."
            ) from error

    return translated


def engine_error(error: docker.errors.APIError) -> EngineError:
    text = str(error.explanation or error)
    status = error.response.status_code if error.response is not None else None
    if any(phrase in text for phrase in _PORT_TAKEN):
        return PortTakenError(text, status=status)
    if _NO_ADDRESSES in text:
        return NoAddressRangeError(
            f"The engine has no free network address range left ({text}). "
            "List networks with `docker network ls`, remove unused ones with `docker network prune`, or give the "
            "engine more ranges (`default-address-pools` in daemon.json).",
            status=status,
        )
    if status == 404:
        return EngineNotFoundError(text, status=status)
    return EngineError(text, status=status)
