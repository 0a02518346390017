"""What the command writes and reads again: certificates, and files of answers."""

from __future__ import annotations

import hashlib
import json
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import warm

from fuzzing.changes import BYTES, Random, one_of, with_json_changed
from fuzzing.networks import plain_model

MAGIC = b"shakeproof certificate 1\n"
QUESTION = "profile m.onnx x.npy -p box-blur:size=3 --max-strength 0.2"


@cache
def good(name: str) -> bytes:
    """What `QUESTION` writes into a file of that name, and the two files that it reads."""
    if name == "m.onnx":
        return plain_model(np.random.default_rng(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        if name == "x.npy":
            np.save(path, np.random.default_rng(0).random((1, 4, 4)).astype(np.float32))
        else:
            for needed in ("m.onnx", "x.npy"):
                Path(folder, needed).write_bytes(good(needed))
            option = "--certificate" if path.suffix == ".cert" else "--output"
            done = warm.run(*QUESTION.split(), option, name, cwd=Path(folder))
            assert done.returncode in (0, 1), done.stderr
        return path.read_bytes()


def with_a_claim_changed(data: bytes, random: Random) -> bytes:
    """A certificate whose header or arrays say something else, with the digest of that."""
    if not data.startswith(MAGIC):
        return data
    header, _, arrays = data[len(MAGIC) : -32].partition(b"\n")
    if random.integers(3):
        changed = with_json_changed(header, random)
        try:
            header = json.dumps(json.loads(changed), ensure_ascii=False).encode(errors="replace")
        except (ValueError, RecursionError):
            header = changed
    else:
        arrays = one_of(BYTES, random)(arrays, random)
    body = MAGIC + header + b"\n" + arrays
    return body + hashlib.sha256(body).digest()
