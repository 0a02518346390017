"""The map in docs/architecture.md, held: layers, no reaching past a package's door, no name for two things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import shakeproof

ROOT = Path(shakeproof.__file__).parent
# What the root itself has.
OF_THE_ROOT = ("__version__", "names_on_first_use")
MAP = ROOT.parents[1] / "docs" / "architecture.md"
# From the ground up: a room may import from lower layers, and from its own without going in circles.
LAYERS = {
    "alone": {"checker"},
    "values": {
        "errors",
        "files",
        "budget",
        "linalg",
        "convolution",
        "question",
    },
    "networks": {"operators", "graph", "model", "demo"},
    "engines": {"rounding", "exact", "bounds", "search", "enumeration"},
    "answers": {
        "settings",
        "analysis",
        "proof",
        "comparing",
        "scanning",
        "estimate",
        "digests",
    },
    "records": {"exporting", "certificate", "store", "parallel"},
    "faces": {"report", "testing", "asserting", "plugin", "cli"},
}
HEIGHT = {room: height for height, rooms in enumerate(LAYERS.values()) for room in rooms}
# `result.plot()` and `compared.plot()` are conveniences for people at a prompt: they look up, and only when called.
# The question names the network's types in its signatures, and imports nothing of it.
ALLOWED = {
    ("proof", "report"),
    ("comparing", "report"),
    ("scanning", "report"),
    ("question", "graph"),
    ("question", "model"),
}


def imported(path: Path) -> set[str]:
    """The modules of shakeproof that a file imports from, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "shakeproof":
            found.update(f"shakeproof.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return {name for name in found if name.startswith("shakeproof.")} - {f"shakeproof.{name}" for name in OF_THE_ROOT}


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def sources() -> list[Path]:
    doors = (ROOT / "__init__.py", ROOT / "__main__.py")
    return [path for path in sorted(ROOT.rglob("*.py")) if path not in doors]


def edges() -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in sources():
        found[room_of(path)] |= {name.split(".")[1] for name in imported(path)} - {room_of(path)}
    return found


def violations(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    return [
        (room, other)
        for room, others in found.items()
        for other in others
        if HEIGHT[other] > HEIGHT[room] and (room, other) not in ALLOWED
    ]


def circles(found: dict[str, set[str]]) -> set[str]:
    """The rooms that, within their layer, can be reached from themselves."""
    left = {room: {o for o in others if HEIGHT[o] == HEIGHT[room]} for room, others in found.items()}
    while free := [room for room, others in left.items() if not others & left.keys()]:
        for room in free:
            del left[room]
    return set(left)


def reaching_past(found: dict[str, set[str]]) -> list[tuple[str, str]]:
    """Imports, by file, of a module inside another package."""
    return [
        (path, name)
        for path, names in found.items()
        for name in names
        if name.count(".") > 1 and name.split(".")[1] != path.split("/")[0]
    ]


def modules() -> dict[str, set[str]]:
    """By name of a module, those that it imports when it is imported, not in functions nor for type hints."""
    paths = {".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path for path in ROOT.rglob("*.py")}
    named = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    return {name: at_once(ast.parse(path.read_text()).body) & named.keys() - {name} for name, path in named.items()}


def at_once(statements: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in statements:
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            found |= at_once(node.body)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def depth(imports: dict[str, set[str]]) -> int:
    @cache
    def below(name: str) -> int:
        return 1 + max(map(below, imports[name]), default=0)

    return max(map(below, imports))


def by_file() -> dict[str, set[str]]:
    return {str(path.relative_to(ROOT)): imported(path) for path in sources()}


def test_every_room_has_its_layer():
    assert {room_of(path) for path in sources()} == set(HEIGHT)


def test_imports_point_downwards():
    assert violations(edges()) == []


def test_the_question_imports_no_network():
    """Only for type hints."""
    for path in (ROOT / "question").glob("*.py"):
        text = path.read_text()
        for line in re.findall(r"^.*from shakeproof\.(?:graph|model) import.*$", text, re.MULTILINE):
            assert line.startswith("    "), path
            assert text.index("if TYPE_CHECKING:") < text.index(line) < text.index("\n\n\n"), path


def test_the_checker_stands_alone():
    """Whoever audits it reads nothing else: it imports from no other room."""
    assert edges()["checker"] == set()


def test_an_upward_import_is_noticed():
    assert violations({**edges(), "question": {"cli"}}) == [("question", "cli")]


def test_no_room_imports_itself_by_a_detour():
    assert circles(edges()) == set()
    assert circles({**edges(), "proof": {"settings"}, "settings": {"proof"}}) >= {"proof", "settings"}


def test_imports_are_no_deeper_than_they_were():
    """The longest chain of modules of which each imports the next when it is imported."""
    assert depth(modules()) <= 18
    assert depth({"a": {"b"}, "b": {"c"}, "c": set()}) == 3


def test_no_module_imports_itself_by_a_detour():
    with pytest.raises(RecursionError):
        depth({"a": {"b"}, "b": {"a"}})


def test_nobody_reaches_past_a_packages_door():
    assert reaching_past(by_file()) == []
    assert reaching_past({"cli/options.py": {"shakeproof.model.builder"}}) != []


def test_no_name_stands_for_two_things():
    homes = defaultdict(list)
    for path in sources():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_results_are_made_by_methods_only():
    """The three methods hand evidence over; nothing else makes a result, and nothing anywhere sets a verdict."""
    makers = {
        str(path.relative_to(ROOT))
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Result"
    }
    assert makers == {"proof/bounds_method.py", "proof/enumeration_method.py", "proof/exact_method.py"}
    fields = ast.unparse(
        next(n for n in ast.parse((ROOT / "proof" / "result.py").read_text()).body if isinstance(n, ast.ClassDef))
    )
    assert not re.search(r"^    (status|reason)\s*:", fields, re.MULTILINE)


def test_only_the_budget_reads_the_clock():
    clocks = {
        str(path.relative_to(ROOT))
        for path in sources()
        if re.search(r"\bperf_counter|\btime\.time\(", path.read_text())
    }
    assert clocks == {"budget.py"}


def test_the_core_does_not_speak_of_flags():
    """Errors name an argument (`option=`); how it is typed is the command's business."""
    for path in sources():
        if room_of(path) == "cli":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                assert not re.search(r"--[a-z]", ast.unparse(node.exc)), f"{path}:{node.lineno}"


def test_all_that_is_printed_goes_one_way():
    """By `cli.terminal`, which prints in any encoding: click would take an ASCII stream for a mistake."""
    for path in ROOT.rglob("*.py"):
        calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
        assert not {"print", "click.echo", "click.secho"} & {*map(ast.unparse, calls)}, path


@pytest.mark.skipif(not MAP.exists(), reason="the documentation is not installed with the package")
def test_the_map_shows_the_layers():
    text = MAP.read_text()
    for name, rooms in LAYERS.items():
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        assert set(re.findall(r"`([a-z]+)/?`", row)) == rooms, name


def section(text: str, title: str) -> str:
    return text.split(f"## {title}\n")[1].split("\n## ")[0]


def names_what_is_there(name: str) -> bool:
    """Whether `package.module.Class.method` can be followed from the package's root."""
    place: object = shakeproof
    for number, word in enumerate(words := name.split("."), start=1):
        if not hasattr(place, word):
            try:
                import_module(".".join(["shakeproof", *words[:number]]))
            except ModuleNotFoundError:
                return False
        place = getattr(place, word)
    return True


@pytest.mark.skipif(not MAP.exists(), reason="the documentation is not installed with the package")
def test_one_querys_way_is_short_and_real():
    """In at most fifteen steps, each of which names what can be looked up."""
    way = section(MAP.read_text(), "One query's way")
    steps = re.findall(r"^(\d+)\. ", way, re.MULTILINE)
    assert len(steps) <= 15
    names = re.findall(r"`([a-z_]+\.[\w.]+)`", way)
    assert [name for name in names if not names_what_is_there(name)] == []
    assert len(names) >= len(steps)
    assert not names_what_is_there("proof.exact_method.answer_vaguely")


@pytest.mark.skipif(not MAP.exists(), reason="the documentation is not installed with the package")
def test_files_that_the_map_names_are_there():
    for page in (MAP, MAP.parents[1] / "CONTRIBUTING.md"):
        files = re.findall(r"`([a-z_]+(?:/[a-z_]+)?\.py)`", page.read_text())
        assert [
            name for name in files if not any((place / name).exists() for place in (ROOT, ROOT.parent, ROOT.parents[1]))
        ] == []
