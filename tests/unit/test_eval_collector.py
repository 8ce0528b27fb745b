"""The garbage collector is paused where rows are made, and is as it was before afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from nemo_gym.eval.collector import collector_paused


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_is_off_inside_and_on_again_after_errors_too() -> None:
    was_on_inside = []

    def fail_inside() -> None:
        with collector_paused():
            was_on_inside.append(gc.isenabled())
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert was_on_inside == [False]
    assert gc.isenabled()


def test_who_has_it_off_keeps_it_off() -> None:
    gc.disable()
    with collector_paused():
        assert not gc.isenabled()
    assert not gc.isenabled()


def test_when_two_overlap_it_is_on_after_both() -> None:
    first, second = collector_paused(), collector_paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
