"""Inputs broken at random: for each kind of file, for command lines and for folders; and what is promised for all.

`broken(kind, seed)` is a case with something wrong in it, the same for the same seed; `whole(kind, seed)` has nothing
wrong. `broken_promises` says what a run did that it must not: crash, hang, take too much memory, print a traceback or
more than one line, or leave something half-written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fuzzing.answers import QUESTION, good, with_a_claim_changed
from fuzzing.cases import LIMITS, Case, FileKind, broken_promises, wrongly_said, wrongly_written
from fuzzing.changes import (
    BYTES,
    Change,
    Random,
    one_of,
    with_a_cell_changed,
    with_a_key_more,
    with_a_line_moved,
    with_a_token_changed,
    with_json_changed,
    with_members_changed,
)
from fuzzing.networks import packed, small_model, small_query, with_a_field_changed
from fuzzing.pictures import (
    kernel_archive,
    kernel_array,
    kernel_picture,
    kernel_table,
    kernel_variables,
    npy,
    small_archive,
    small_array,
    small_picture,
    with_a_chunk_changed,
    with_a_header_changed,
)
from fuzzing.words import FolderKind, WordsKind

__all__ = ["KINDS", "LIMITS", "Case", "broken", "broken_promises", "whole", "wrongly_said", "wrongly_written"]


Make = Callable[[Random], bytes]


class Kind(Protocol):
    def case(self, seed: int, random: Random, broken: bool = True) -> Case: ...


def broken(kind: str, seed: int) -> Case:
    """A case with one to three things wrong."""
    return KINDS[kind].case(seed, _random(kind, seed))


def whole(kind: str, seed: int) -> Case:
    """A case with nothing wrong."""
    return KINDS[kind].case(seed, _random(kind, seed), broken=False)


def _random(kind: str, seed: int) -> Random:
    return np.random.default_rng([seed, *kind.encode()])


# Behind every command: it may give up soon.
SHORT = "-p box-blur:size=3 --max-strength 0.2 --timeout 2"
JSON = (with_json_changed,) * 4 + (with_a_key_more,) + BYTES
TEXT = (with_a_line_moved, with_a_cell_changed) * 3 + BYTES
CONFIGURATION = (
    b'{"image_processor_type": "ViTImageProcessor", "do_resize": true, "size": {"height": 4, "width": 4}, '
    b'"resample": 2, "do_rescale": true, "rescale_factor": 0.00392, "do_normalize": true, '
    b'"image_mean": [0.5], "image_std": [0.5]}'
)
NAMES = (b"cat\ndog\nshark, great white\n", b"0 cat\n1 dog\n2 bird\n", b"cat,dog,bird")
NAMES_IN_JSON = (
    b'["cat", "dog", ["n01", "bird"]]',
    b'{"0": "cat", "1": "dog", "2": "bird"}',
    b'{"id2label": {"a": 0, "b": 1, "c": 2}}',
)


def a_model(name: str, make: Make, changes: Sequence[Change], side: int = 4) -> FileKind:
    commands = (f"profile {name} s.npy {SHORT} --json", f"supports {name} --json --trial 0")
    return FileKind(name, make, changes, commands, {"s.npy": npy(np.random.default_rng(0).random((1, side, side)))})


def a_query(name: str, make: Make, changes: Sequence[Change]) -> FileKind:
    model = small_model(np.random.default_rng(0))
    return FileKind(name, make, changes, [f"verify s.onnx {name} --timeout 2 --json"], {"s.onnx": model})


def a_picture(form: str, ending: str) -> FileKind:
    name, changes = f"b.{ending}", BYTES + (with_a_chunk_changed,) * 6 * (form == "PNG")
    commands = (
        f"profile m.onnx {name} {SHORT} --resize 4,4 --colour grey",
        f"profile m.onnx {name} {SHORT} --json --colour grey --crop 4",
    )
    return FileKind(name, small_picture(form), changes, commands)


def a_kernel(name: str, make: Make, changes: Sequence[Change]) -> FileKind:
    commands = (
        f"verify m.onnx x.npy -p custom:file={name},index=0,normalise=yes --strength 0.2 --timeout 2 --json",
        f"kernels psf:file={name},index=0",
        f"verify m.onnx x.npy -p psf:file={name},index=0 --strength 0.2 --timeout 2",
    )
    return FileKind(name, make, changes, commands)


def beside_a_picture(name: str, option: str, make: Make, changes: Sequence[Change]) -> FileKind:
    return FileKind(name, make, changes, [f"profile m.onnx x.npy {SHORT} {option} {name}"])


def an_answer(name: str, command: str, changes: Sequence[Change]) -> FileKind:
    return FileKind(name, lambda random: good(name), changes, [command])


ENDINGS = {
    "PNG": "png",
    "JPEG": "jpg",
    "GIF": "gif",
    "BMP": "bmp",
    "TIFF": "tif",
    "PPM": "ppm",
    "TGA": "tga",
    "WEBP": "webp",
    "JPEG2000": "jp2",
}
ARRAY = (with_a_header_changed,) * 6 + BYTES
ARCHIVE = (with_members_changed(with_a_header_changed, ".npy"),) * 6 + BYTES
KINDS: dict[str, Kind] = {
    "onnx": a_model("b.onnx", small_model, (with_a_field_changed,) * 8 + BYTES),
    "onnx.gz": a_model("b.onnx.gz", packed(small_model), BYTES),
    "vnnlib": a_query("b.vnnlib", small_query, (with_a_token_changed, with_a_line_moved) * 3 + BYTES),
    "vnnlib.gz": a_query("b.vnnlib.gz", packed(small_query), BYTES),
    **{ending: a_picture(form, ending) for form, ending in ENDINGS.items()},
    "npy": FileKind(
        "b.npy",
        small_array,
        ARRAY,
        [f"profile m.onnx b.npy {SHORT}", f"profile m.onnx b.npy@0 {SHORT} --image-shape 1,4,4"],
        several=True,
    ),
    "npz": FileKind(
        "b.npz",
        small_archive,
        ARCHIVE,
        [
            f"profile m.onnx {word} {SHORT} --json"
            for word in ("b.npz", "b.npz@1", "b.npz@0:2", "b.npz@::2 --array x", "b.npz --labels y")
        ],
        several=True,
    ),
    "kernel npy": a_kernel("k.npy", kernel_array, ARRAY),
    "kernel npz": a_kernel("k.npz", kernel_archive, ARCHIVE),
    "kernel mat": a_kernel("k.mat", kernel_variables, BYTES),
    "kernel csv": a_kernel("k.csv", kernel_table, TEXT),
    "kernel png": a_kernel("k.png", kernel_picture, (with_a_chunk_changed,) * 6 + BYTES),
    "class names": beside_a_picture("c.txt", "--classes", lambda random: one_of(NAMES, random), TEXT),
    "class names in JSON": beside_a_picture("c.json", "--classes", lambda random: one_of(NAMES_IN_JSON, random), JSON),
    "preprocessing": beside_a_picture("p.json", "--preprocess", lambda random: CONFIGURATION, JSON),
    "certificate": an_answer("a.cert", "check a.cert --model m.onnx", (with_a_claim_changed,) * 8 + BYTES),
    "answers jsonl": an_answer("out.jsonl", f"{QUESTION} --output out.jsonl --resume", (with_a_line_moved, *JSON)),
    "answers csv": an_answer("out.csv", f"{QUESTION} --output out.csv --resume", TEXT),
    "words": WordsKind(),
    "folders": FolderKind(),
}
