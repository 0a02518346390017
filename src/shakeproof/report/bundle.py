"""A report with all that it takes to check it elsewhere, in one folder."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np

from shakeproof import checker
from shakeproof.errors import InputError
from shakeproof.report import recheck
from shakeproof.report.gathering import Reported, model_files
from shakeproof.report.safety import written
from shakeproof.store import Store

README = """\
report.html     the report, for any browser; it asks nothing of any other computer
evidence.json   the same facts for programs: claims, domains, digests, verdicts, what is undecided
store.db        the answers; shakeproof's own commands read it
certificates/   what it takes to find verdicts again, named by their SHA-256
models/         the networks that they are about
images/         the pixels, as numpy arrays (channels, height, width), named by their SHA-256
checker/        the program that checks certificates: Python and numpy, nothing else
recheck.py      checks all of it anew: python recheck.py
manifest.json   the SHA-256 of every file
"""
STORE = "store.db"


def write_bundle(folder: Path, store: Store, reported: Reported, evidence: Mapping[str, Any], page: str) -> None:
    """Write the folder, whole or not at all."""
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _fill(draft, store, reported, {recheck.PAGE: page, recheck.EVIDENCE: written(evidence)})
            draft.chmod(0o755)
            draft.replace(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except (OSError, sqlite3.Error) as error:
        raise InputError(f"{folder}: cannot be written ({error}); choose a place with room") from error


def check_new(folder: Path) -> None:
    """Refuse a folder in which something is: it would be mixed up with what is written."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: is there already; name a folder that is new or empty")


def _fill(draft: Path, store: Store, reported: Reported, texts: Mapping[str, str]) -> None:
    found = model_files(store, reported.campaign, reported.models)
    models = {identity: f"models/{identity[:12]}-{path.name}" for identity, path in found.items()}
    images = {image.digest: f"images/{image.digest}.npy" for image in reported.images}
    digests = {}
    for name, data in _files(store, reported, texts):
        digests[name] = _written(draft / name, data)
    for identity, name in models.items():
        digests[name] = _written(draft / name, found[identity].read_bytes())
    for image in reported.images:
        digests[images[image.digest]] = _written(draft / images[image.digest], _npy(image.pixels))
    with closing(sqlite3.connect(draft / STORE)) as copy:
        store.connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")  # one file, not three
    digests[STORE] = hashlib.sha256((draft / STORE).read_bytes()).hexdigest()
    manifest = {"files": digests, "models": models, "images": images}
    _written(draft / recheck.MANIFEST, json.dumps(manifest, indent=1).encode())


def _files(store: Store, reported: Reported, texts: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """What is written as it is."""
    yield from ((name, text.encode()) for name, text in {**texts, "README.txt": README}.items())
    yield "recheck.py", Path(recheck.__file__).read_bytes()
    yield "checker/shakeproof/__init__.py", b""
    for path in sorted(Path(checker.__file__).parent.glob("*.py")):
        yield f"checker/shakeproof/checker/{path.name}", path.read_bytes()
    for one in reported.profiles:
        if one.certificate is not None:
            yield f"certificates/{one.certificate}.cert", store.certificate(one.query) or b""


def _written(path: Path, data: bytes) -> str:
    """Its digest, once it is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return hashlib.sha256(data).hexdigest()


def _npy(pixels: np.ndarray[Any, Any]) -> bytes:
    file = BytesIO()
    np.save(file, pixels)
    return file.getvalue()
