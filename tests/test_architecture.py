"""Imports point downwards only."""

from __future__ import annotations

import ast
from pathlib import Path

import shakeproof

ROOT = Path(shakeproof.__file__).parent
# From the ground up: a room may import from its own and lower floors.
FLOORS = [
    {"errors", "files", "memory", "rounding"},
    {"kernels"},
    {"perturbation", "operators"},
    {"network"},
    {"exact", "bounds", "vnnlib", "demo"},
    {"search"},
    {"images", "attack"},
    {"result", "settings"},
    {"verdict"},
    {"methods"},
    {"analysis"},
    {"report", "exporting"},
    {"cli"},
]
FLOOR = {room: height for height, rooms in enumerate(FLOORS) for room in rooms}
# `result.plot()` is a convenience for people at a prompt: it looks up, and only when called.
ALLOWED = {("result", "report")}


def imports(path: Path) -> set[str]:
    """The rooms of shakeproof that a file imports from, anywhere in it."""
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [
                f"{node.module}.{alias.name}" if node.module == "shakeproof" else node.module for alias in node.names
            ]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms.update(name.split(".")[1] for name in names if name.startswith("shakeproof."))
    return rooms - {"__version__"}


def violations(imported: dict[str, set[str]]) -> list[tuple[str, str]]:
    return [
        (room, other)
        for room, others in imported.items()
        for other in others
        if FLOOR[other] > FLOOR[room] and (room, other) not in ALLOWED
    ]


def rooms() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts != ("__init__",):
            found.setdefault(parts[0], set()).update(imports(path))
    return found


def test_every_room_has_its_floor():
    assert set(rooms()) == set(FLOOR)


def test_imports_point_downwards():
    assert violations(rooms()) == []


def test_an_upward_import_is_noticed():
    assert violations({**rooms(), "kernels": {"cli"}}) == [("kernels", "cli")]


def test_nothing_but_the_command_prints():
    for path in ROOT.rglob("*.py"):
        called = {
            n.func.id
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }
        assert "print" not in called, path
