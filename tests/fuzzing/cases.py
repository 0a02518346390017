"""A case is a folder of files and a command that is run in it; what the command promises for all of them."""

from __future__ import annotations

import csv
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import warm
from PIL import Image

from fuzzing.answers import good
from fuzzing.changes import Change, Random, one_of

# No run may take more seconds of a processor's time, or more GiB.
LIMITS = 10, 4
# What may be found under a file's name instead of its bytes.
PIPE, FOLDER, LOOP, NOTHING = "a named pipe", "a folder", "a link to itself", "nothing"
# Outputs are written under names that begin so, or like a word of the command; inputs are left as they were.
OUTPUT = "out"


@dataclass(frozen=True)
class Case:
    """Files by their names in a folder, the words of a command, and how they were made."""

    files: Mapping[str, bytes | str]
    words: tuple[str, ...]
    how: str = ""
    several: bool = False
    """The command is about several images, and each may be refused in a line of its own."""

    def write(self, folder: Path) -> None:
        for name, content in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                path.write_bytes(content)
            elif content == PIPE:
                os.mkfifo(path)
            elif content == FOLDER:
                path.mkdir(exist_ok=True)
            elif content == LOOP:
                path.symlink_to(path.name)

    def run(self, folder: Path) -> warm.Finished:
        self.write(folder)
        return warm.run(*self.words, cwd=folder, limits=LIMITS)


@dataclass(frozen=True)
class FileKind:
    """Files of one kind: a name for one, what makes a good one, what can go wrong in it, and commands that read it."""

    name: str
    make: Callable[[Random], bytes]
    changes: Sequence[Change]
    commands: Sequence[str]
    beside: Mapping[str, bytes] = field(default_factory=dict)
    several: bool = False

    def case(self, seed: int, random: Random, broken: bool = True) -> Case:
        data: bytes | str = self.make(random)
        how = []
        for _ in range(random.integers(1, 4) if broken else 0):
            change = one_of(self.changes, random)
            how.append(change.__name__)
            data = change(data, random)
        if broken and not random.integers(25):
            data = one_of((PIPE, FOLDER, LOOP, NOTHING), random)
            how = [data]
        words = self.commands[seed % len(self.commands)].split()
        beside = {name: good(name) for name in ("m.onnx", "x.npy") if name in words} | dict(self.beside)
        return Case(beside | {self.name: data}, tuple(words), "+".join(how), self.several)


def broken_promises(case: Case, done: subprocess.CompletedProcess[str], folder: Path) -> list[str]:
    """What a run did that it must not; nothing, if all is well."""
    return [*wrongly_said(done, case.several), *wrongly_written(case, done.returncode, folder)]


def wrongly_said(done: subprocess.CompletedProcess[str], several: bool = False) -> list[str]:
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("no certificate: ", "wrote "))]
    refused = done.returncode == 2
    rules = {
        f"exit code {done.returncode}": done.returncode in (0, 1, 2, 3),
        "an internal error": "internal error" not in done.stderr and "bug in shakeproof" not in done.stderr,
        "a traceback": "Traceback" not in done.stderr + done.stdout,
        "memory that is not enough": "machine's memory" not in done.stderr,
        "no line of its own": not refused or bool(lines) or "Usage: " in done.stdout,
        "lines that are not ours": all(line.startswith("shakeproof: ") for line in lines),
        f"{len(lines)} lines": refused >= bool(lines) and (several or len(lines) <= 1),
        "output beside an error": not refused or several or done.stdout == "" or "Usage: " in done.stdout,
    }
    return [f"{name}: {done.stderr[-300:]}" for name, kept in rules.items() if not kept]


def wrongly_written(case: Case, code: int, folder: Path) -> list[str]:
    """Inputs that are not what they were, files that nobody asked for, and outputs that are not whole."""
    wrong, asked = [], [word.partition(".")[0] for word in case.words if word[:1] not in ("", ".")]
    found = {os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names}
    for name in sorted(found | {name for name, held in case.files.items() if isinstance(held, bytes)}):
        before, path = case.files.get(name), folder / name
        is_output = name.startswith(OUTPUT)
        if before is None and not name.startswith((OUTPUT, *asked)):
            wrong.append(f"left a file {name!r}")
        elif isinstance(before, bytes) and (not is_output or code == 2):
            wrong += [] if path.is_file() and path.read_bytes() == before else [f"changed {name!r}"]
        elif is_output and path.is_file() and not _is_whole(path):
            wrong.append(f"wrote half of {name!r}")
    return wrong


def _is_whole(path: Path) -> bool:
    """Whether an output can be read back to its end."""
    data = path.read_bytes()
    try:
        match path.suffix:
            case ".jsonl":
                return all(json.loads(line.decode(errors="surrogateescape")) for line in data.splitlines()) and data[
                    -1:
                ] in (b"", b"\n")
            case ".csv":
                rows = csv.reader(data.decode(errors="surrogateescape").split("\n"))
                return len({len(row) for row in rows if row}) == 1 and data.endswith(b"\n")
            case ".png":
                Image.open(path).load()
            case ".npy":
                np.load(path)
            case ".svg" | ".xml":
                ElementTree.parse(path)
    except (ValueError, OSError, EOFError, csv.Error, ElementTree.ParseError):
        return False
    return True
