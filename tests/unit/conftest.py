"""Fixtures that several modules use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a cache of its own; a benchmark is found below it as it is below a checkout."""
    folder = tmp_path / "root"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NEMO_GYM_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NEMO_GYM_EXTRA_ROOTS", raising=False)
    return folder
