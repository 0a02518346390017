"""Does the checker read models as onnxruntime does? Many changed models, the same for the same seed.

    python benchmarks/fuzz_checker.py [--count 100000] [--seed 0] [--keep DIR]

Each is a small network of whole numbers with up to three changes: to fields, wire types, numbers, types, shapes,
attributes, names and the order of nodes (tests/fuzzing/differential.py). The checker may refuse. Where it answers, its
enclosure for float32, without slack, must contain onnxruntime's scores. The exit code is 1 if one does not; `--keep`
keeps such models. Models are asked in processes of their own, since a changed model may end onnxruntime's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))

from fuzzing.differential import Answer, answers, model_and_pixels
from rich.progress import track

TOGETHER = 500  # models asked in one process
GIB = 8  # that a process may map


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (GIB * 2**30, GIB * 2**30))


def asked(seeds: range) -> list[tuple[int, Answer]]:
    """In a process of its own; where that ends, in halves, down to the model that ends it."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork"), limited) as pool:
        try:
            return pool.submit(answers, seeds).result()
        except BrokenProcessPool:
            if len(seeds) == 1:
                return [(seeds[0], Answer("crashed"))]
    middle = len(seeds) // 2
    return asked(seeds[:middle]) + asked(seeds[middle:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep models that fail in this folder")
    given = parser.parse_args()
    counts, start, last = Counter[str](), time.monotonic(), given.seed + given.count
    for first in track(range(given.seed, last, TOGETHER), "changing"):
        for seed, found in asked(range(first, min(first + TOGETHER, last))):
            counts[found.checker] += 1
            counts["onnxruntime refused"] += found.runtime.startswith("onnxruntime refused")
            counts["compared"] += found.runtime == "ran"
            counts["contradictions"] += bool(found.contradiction)
            if found.contradiction:
                print(f"seed {seed}: {found.contradiction}", flush=True)
                if given.keep:
                    given.keep.mkdir(parents=True, exist_ok=True)
                    (given.keep / f"{seed}.onnx").write_bytes(model_and_pixels(seed)[0])
    for name in ("refused", "unsure", "answered", "answered widely", "crashed"):
        print(f"{name:>20}: {counts[name]}")
    print(f"of those answered, onnxruntime refused {counts['onnxruntime refused']}, compared {counts['compared']}")
    print(f"contradictions: {counts['contradictions']} of {given.count}, {time.monotonic() - start:.0f} s")
    return int(counts["contradictions"] > 0)


if __name__ == "__main__":
    sys.exit(main())
