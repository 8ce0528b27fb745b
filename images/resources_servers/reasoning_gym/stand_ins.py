"""What stands in for packages that reasoning-gym imports and scoring does not need, or needs one function of.

``pycosat`` and ``cellpylib`` (with the matplotlib that comes with it) are used by generators only. ``zss`` measures how
far an answer to ``codeio`` is from the right one; it is not to be had as a wheel, and ``apted`` computes the same.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from apted import APTED, Config


class _Absent(ModuleType):
    """A module that may be imported, and not used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError(f"{self.__name__}.{name} is not in this image: generating needs it, and scoring does not")


class Node:
    """A node of an ordered tree, as ``zss.Node``."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.children: list[Node] = []

    def addkid(self, child: Node) -> Node:
        self.children.append(child)
        return self


class _Costs(Config):  # type: ignore[misc]
    """Removing or adding a node costs its label's distance from nothing, as zss has it."""

    def __init__(self, label_dist: Callable[[str, str], float]) -> None:
        self._label_dist = label_dist

    def delete(self, node: Node) -> float:
        return self._label_dist(node.label, "")

    def insert(self, node: Node) -> float:
        return self._label_dist("", node.label)

    def rename(self, node1: Node, node2: Node) -> float:
        return self._label_dist(node1.label, node2.label)

    def children(self, node: Node) -> list[Node]:
        return node.children


def simple_distance(tree: Node, other: Node, *, label_dist: Callable[[str, str], float]) -> float:
    """The least cost of turning one ordered tree into another, as ``zss.simple_distance``."""
    return float(APTED(tree, other, _Costs(label_dist)).compute_edit_distance())


def install() -> None:
    """Let the absent packages be imported; those that are there stay."""
    zss = ModuleType("zss")
    zss.Node, zss.simple_distance = Node, simple_distance  # type: ignore[attr-defined]
    for module in (_Absent("pycosat"), _Absent("cellpylib"), zss):
        sys.modules.setdefault(module.__name__, module)
