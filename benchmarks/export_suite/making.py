"""Makes the files, and for each a picture to ask about."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .makers import Make, all_makers
from .runtime import Array, Runtime, blurred, runtime

TRIES = 60
TELLABLE = 1e-3  # a lead, beside the scores, that is no matter of rounding


def make_all(folder: Path, only: str, again: bool) -> Iterator[str]:
    """Make what can be made here; a line for each file."""
    for model, exporter, maker in all_makers():
        path = folder / f"{model}@{exporter}.onnx"
        if only not in path.name or (path.with_suffix(".npy").exists() and not again):
            continue
        yield f"{path.name}: {_made(maker, path)}"


def _made(maker: Make, path: Path) -> str:
    try:
        with quietly():
            maker(path)
            model = runtime(path)
    except ModuleNotFoundError as error:
        return f"skipped, {error.name} is not installed"
    except Exception as error:  # whatever an exporter meets; the others go on
        path.unlink(missing_ok=True)
        return f"the exporter failed ({type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]})"
    picture, changes = interesting(model, seed=len(path.name))
    np.save(path.with_suffix(".npy"), picture)
    return "made" if changes else "made; no picture was found whose class changes"


def interesting(model: Runtime, seed: int) -> tuple[Array, bool]:
    """A picture whose class is clear, and another one when it is blurred."""
    random = np.random.default_rng(seed)
    pictures = (random.random(model.picture, dtype=np.float32) ** random.integers(1, 5) for _ in range(TRIES))
    first = None
    for picture in pictures:
        first = picture if first is None else first
        (sharp, lead), (soft, led) = model.winner(picture), model.winner(blurred(picture, 1.0))
        if sharp != soft and min(lead, led) > TELLABLE:
            return picture, True
    assert first is not None
    return first, False


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Exporters talk a lot."""
    logging.disable(logging.CRITICAL)
    os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_ENABLE_ONEDNN_OPTS="0", TRANSFORMERS_VERBOSITY="error")
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
