"""Wheels made on the fly."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    path: Path,
    python: str = ">=3.8",
    *,
    needs: str = "not-on-any-index",
    files: Mapping[str, str] | None = None,
) -> str:
    """Write the wheel that ``path`` names, with ``made_data/rows.jsonl`` or ``files`` in it; its sha256."""
    name, version = path.name.split("-")[:2]
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {python}\n"
    if needs:
        metadata += f"Requires-Dist: {needs}\n"
    content = {
        **({f"{name}/rows.jsonl": '{"a": 1}\n'} if files is None else files),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {path.stem.split('-', 2)[2]}\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in [*content, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in content.items():
            wheel.writestr(member, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()
