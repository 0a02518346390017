"""Every example in the documentation runs, and shows what it says.

A page is a session in a folder of its own, with the files of `shakeproof demo --files` in it. Its blocks run in order:

- ```python is executed, in one namespace for the page; if its first line is `# NAME.py`, it becomes that file instead;
- ```console has commands behind `$ `, and behind each what it prints, if the page says so: `...` stands for anything;
- a block behind `<!-- not run: REASON -->` is left alone, and so are blocks in other languages.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

import pytest
import warm

import shakeproof
from shakeproof import Record, demo
from shakeproof.question import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(
    r"(?P<left><!-- not run: [^>]+ -->\n+)?^(?P<fence>`{3,})(?P<language>python|console)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
LOOSELY = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    left: bool


def blocks(page: str) -> Iterator[Block]:
    for found in BLOCK.finditer(page):
        line = page.count("\n", 0, found.start("text"))
        yield Block(found["language"], found["text"], line, found["left"] is not None)


class Session:
    """What a reader has in front of them: a folder, a Python prompt, a terminal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.names = folder, {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        if block.language == "python":
            self.python(block)
        else:
            self.console(block.text)

    def python(self, block: Block) -> None:
        named = re.match(r"# (\w+\.py)\n", block.text)
        if named:
            (self.folder / named[1]).write_text(block.text)
        else:
            exec(compile("\n" * block.line + block.text, "the page", "exec"), self.names)

    def console(self, text: str) -> None:
        commands = re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)
        assert not commands[0].strip(), f"a command begins with $: {commands[0]!r}"
        for command in commands[1:]:
            words, _, expected = command.partition("\n")
            if words.startswith("cd "):
                self.folder = self.folder / words[3:]
                os.chdir(self.folder)
                continue
            done = self.typed(shlex.split(words, comments=True))
            printed = done.stdout + done.stderr
            assert done.returncode != 2 or expected.startswith("shakeproof: "), f"{words}: {printed}"
            agrees = doctest.OutputChecker().check_output(expected, printed, LOOSELY)
            assert agrees or not expected.strip(), f"{words} prints\n{printed}\nthe page says\n{expected}"

    def typed(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        if words[0] == "shakeproof":
            return warm.run(*words[1:], cwd=self.folder)
        module = {"python": [], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}[words[0]]
        command = [sys.executable, *module, *words[1:]]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A folder with the files that `shakeproof demo --files` writes."""
    monkeypatch.chdir(tmp_path)
    demo.write_files(tmp_path)
    return Session(tmp_path)


def with_examples() -> list[Path]:
    return [page for page in PAGES if any(not block.left for block in blocks(page.read_text()))]


@pytest.mark.parametrize("page", with_examples(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_examples_of_a_page_run(page, session):
    for block in blocks(page.read_text()):
        if not block.left:
            session.run(block)


def test_a_wrong_example_is_noticed(session):
    said, real = "$ shakeproof --version\nshakeproof 17\n", "$ shakeproof --version\nshakeproof, version ...\n"
    session.console(real)
    with pytest.raises(AssertionError, match="the page says"):
        session.console(said)
    with pytest.raises(AssertionError, match="No such"):
        session.console("$ shakeproof profile missing.onnx stop.png -p identity\n")
    with pytest.raises(NameError):
        session.python(Block("python", "never_defined\n", 1, False))


def test_blocks_are_found_and_left_alone():
    left = "<!-- not run: takes an hour -->\n```console\n$ b\n```\n"
    page = f"```python\na\n```\n\n{left}\n    indented\n\n```text\nc\n```\n"
    assert [(b.language, b.left) for b in blocks(page)] == [("python", False), ("console", True)]


def test_every_json_field_is_explained(session):
    parts = re.split("## Comparisons|## Scans", (DOCS / "reference" / "json.md").read_text())
    said, compared, scanned = (set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE)) for part in parts)
    assert said == {field.name for field in fields(Record)}
    found = shakeproof.compare("model.onnx", "model.onnx", "stop.png", "box-blur:size=3", 0.001, pixels="8bit")
    assert compared == {*found.to_json()}
    assert scanned == {*shakeproof.scan("model.onnx", "stop.png", sizes=(3,), angles=(0,)).to_json()}


def test_every_family_is_shown():
    page = (DOCS / "perturbations.md").read_text()
    assert [name for name in FAMILIES if f"`{name}" not in page] == []


def test_every_public_name_is_in_the_reference():
    page = (DOCS / "reference" / "api.md").read_text()
    assert set(re.findall(r":: shakeproof\.(\w+)$", page, re.MULTILINE)) == set(shakeproof.__all__)


def test_what_a_package_index_shows_needs_no_other_file():
    hook = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["metadata"]["hooks"][
        "fancy-pypi-readme"
    ]
    shown = (ROOT / hook["fragments"][0]["path"]).read_text()
    for change in hook["substitutions"]:
        assert re.search(change["pattern"], shown), change
        shown = re.sub(change["pattern"], change["replacement"], shown)
    assert "![" not in shown
    assert "pictures were" not in shown
    assert re.findall(r"\]\((?!https?:)", shown) == []


def test_the_site_builds(tmp_path):
    pytest.importorskip("sphinx")
    words = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").exists()
