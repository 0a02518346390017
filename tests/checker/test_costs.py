"""Small files that ask for much: refused before it is computed, in bounded time and memory."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from certificates import header, safe
from models import model
from onnx import TensorProto, helper
from processes import HANGING

from shakeproof import checker
from shakeproof.certificate import pack
from shakeproof.checker import kernels

PIXELS = np.array([1.0, 0.25]).reshape(1, 1, 2)
SECONDS, GIB = 60, 4  # of the processor; alone, it takes a third of that


def filled(name: str, kind: int = TensorProto.FLOAT) -> Any:
    value = helper.make_tensor("v", kind, [1], [1])
    return helper.make_node("ConstantOfShape", [f"{name}_shape"], [name], value=value)


def network(*nodes: Any, **whole: Any) -> bytes:
    nodes[-1].output[0] = "y"
    weights = {name: np.array(numbers, np.int64) for name, numbers in whole.items()}
    return model([*nodes], (1, 1, 1, 2), weights).SerializeToString()


def chain(kind: str, count: int, *first: Any, twice: bool = False, **attributes: Any) -> list[Any]:
    names = [first[-1].output[0], *(f"v{i}" for i in range(count))]
    made = (helper.make_node(kind, [a, a] if twice else [a], [b], **attributes) for a, b in pairwise(names))
    return [*first, *made]


NODE = helper.make_node
PADDED = NODE("Pad", ["x", "wide"], ["p"])
HOSTILE = {
    "padding": network(PADDED, NODE("Flatten", ["p"], ["f"]), wide=[0] + [1000] * 3 + [0] + [1000] * 3),
    "a value expanded": network(NODE("Expand", ["x", "s"], ["e"]), NODE("Relu", ["e"], ["r"]), s=[1, 2000, 20000, 2]),
    "a constant of any shape": network(
        filled("w"), NODE("Flatten", ["x"], ["f"]), NODE("Gemm", ["f", "w"], ["g"]), w_shape=[2, 10**9]
    ),
    "a constant computed with": network(
        *chain("Neg", 200, filled("w", kind=TensorProto.INT64)), NODE("Flatten", ["x"], ["f"]), w_shape=[5 * 10**7]
    ),
    "doubled again and again": network(*chain("Concat", 40, NODE("Flatten", ["x"], ["f"]), twice=True, axis=1)),
    "a large kernel": network(
        filled("w"), NODE("Conv", ["x", "w"], ["c"], pads=[1000] * 4), NODE("Flatten", ["c"], ["f"]),
        w_shape=[1, 1, 999, 999],
    ),
    "a large window": network(NODE("MaxPool", ["x"], ["m"], kernel_shape=[999, 999], pads=[998] * 4)),
    "many windows": network(
        PADDED, NODE("MaxPool", ["p"], ["m"], kernel_shape=[20, 20]), wide=[0, 0, 200, 200, 0, 0, 200, 200]
    ),
    "norms of many convolutions": network(
        filled("v"), filled("w"),
        NODE("Conv", ["x", "v"], ["a0"]),
        *(NODE("Conv", [f"a{i}", "w"], [f"a{i + 1}"], pads=[1] * 4) for i in range(50)),
        NODE("Flatten", ["a50"], ["f"]), v_shape=[512, 1, 1, 1], w_shape=[512, 512, 3, 3],
    ),
    "many values at once": network(
        NODE("Expand", ["x", "s"], ["e"]), *(NODE("Relu", ["e"], [f"r{i}"]) for i in range(200)),
        NODE("Concat", [f"r{i}" for i in range(200)], ["c"], axis=1), s=[1, 500, 1000, 2],
    ),
    "an index for every entry": network(
        filled("i", kind=TensorProto.INT64), NODE("Flatten", ["x"], ["f"]), NODE("Gather", ["f", "i"], ["g"], axis=1),
        i_shape=[10**8],
    ),
    "a list of axes": network(
        filled("i", kind=TensorProto.INT64), NODE("Slice", ["x", "i", "i", "i"], ["s"]), i_shape=[10**8]
    ),
    "packed": gzip.compress(b"\x0a" + bytes(3 * 10**8)),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_is_refused_soon(name, tmp_path):
    """In a process of its own, whose memory is measured."""
    data = HOSTILE[name]
    assert len(data) < 5000 or name == "packed"
    (tmp_path / "m.onnx").write_bytes(data)
    (tmp_path / "c").write_bytes(safe(data, PIXELS, "brightness:max=0.1", [0.0, 0.5], label=0))
    words, limit = [sys.executable, "-m", "shakeproof.checker", "c", "--model", "m.onnx"], GIB * 2**30

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=HANGING, preexec_fn=limited
    )
    assert done.returncode == 1, done.stderr
    assert "cannot be checked" in done.stdout or "larger than" in done.stdout, done.stdout
    assert "Memory" not in done.stdout


def test_more_effort_may_be_allowed():
    data = network(NODE("Expand", ["x", "s"], ["e"]), NODE("Flatten", ["e"], ["f"]), s=[1, 30, 1000, 2])
    given = safe(data, PIXELS, "brightness:max=0.1", [0.0, 0.5], label=0)
    assert "limit on effort" in checker.check(given, data, effort=1e-4).sentence
    assert "not proved" in checker.check(given, data).sentence  # all scores of an expanded picture are the same


def test_fractions_without_a_small_denominator():
    """In an enumeration, everything is a whole number of a common unit."""
    primes = [n for n in range(10**4, 2 * 10**4) if all(n % k for k in range(2, 150))]
    rows = [[f"1/{prime}" for prime in primes[row * 30 : row * 30 + 30]] for row in range(30)]
    pixels, data = np.zeros((1, 32, 32)), b"no model"
    said = header(data, pixels, "identity", arithmetic="deployed") | {
        "perturbation": "custom:file=k", "kernels": [rows], "rounding": "half-even", "input_shape": [1, 1, 32, 32],
        "deployment": {}, "pictures": 1, "kept": 1, "intervals": [], "strength": [1.0],
    }  # fmt: skip
    start = time.process_time()
    assert "denominator" in checker.check(pack(said, {"pixels": pixels}), data).sentence
    assert time.process_time() - start < 10


def test_a_kernel_is_not_made_before_its_size_is_known():
    start = time.process_time()
    for text in ("sharpen:size=999", "motion-blur:size=999,angle=17", "box-blur:size=999"):
        with pytest.raises(checker.Refused, match="size"):
            kernels.meaning(text, [[["1"]]])
    assert time.process_time() - start < 1


def test_many_arrays_are_not_copied_again_and_again():
    """A header may list thousands of arrays before a large one."""
    pixels = np.zeros((1, 1000, 1000))
    arrays = {f"a{i}": np.zeros(0) for i in range(5000)} | {"pixels": pixels}
    start = time.process_time()
    outcome = checker.check(pack(header(b"", pixels, "identity"), arrays), b"")
    assert not outcome.accepted
    assert time.process_time() - start < 10
