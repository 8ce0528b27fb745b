"""One scripted model for each test process, which is the model of every benchmark that is served."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nemo_gym.testing import ModelEndpointContainer


@pytest.fixture(scope="session")
def model_endpoint() -> Iterator[ModelEndpointContainer]:
    with ModelEndpointContainer() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def benchmark_overrides(model_endpoint: ModelEndpointContainer) -> dict[str, Any]:
    return model_endpoint.overrides()
