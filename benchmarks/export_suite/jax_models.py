"""Flax models, as jax2onnx writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any


def mlp(nnx: Any, rngs: Any) -> Callable[[Any], Any]:
    first, second = nnx.Linear(192, 32, rngs=rngs), nnx.Linear(32, 5, rngs=rngs)
    return lambda x: second(nnx.relu(first(x.reshape(x.shape[0], -1))))


def cnn(nnx: Any, rngs: Any) -> Callable[[Any], Any]:
    first, second = nnx.Conv(3, 6, (3, 3), rngs=rngs), nnx.Conv(6, 8, (3, 3), rngs=rngs)
    last = nnx.Linear(8 * 4, 5, rngs=rngs)

    def scores(x: Any) -> Any:
        x = nnx.max_pool(nnx.relu(first(x)), window_shape=(2, 2), strides=(2, 2))
        x = nnx.avg_pool(nnx.relu(second(x)), window_shape=(2, 2), strides=(2, 2))
        return last(x.reshape(x.shape[0], -1))

    return scores


def normed(nnx: Any, rngs: Any) -> Callable[[Any], Any]:
    first, norm, last = nnx.Linear(192, 16, rngs=rngs), nnx.LayerNorm(16, rngs=rngs), nnx.Linear(16, 5, rngs=rngs)
    return lambda x: last(nnx.gelu(norm(first(x.reshape(x.shape[0], -1)))))


def gated(nnx: Any, rngs: Any) -> Callable[[Any], Any]:
    first, last = nnx.Conv(3, 8, (3, 3), strides=2, rngs=rngs), nnx.Linear(8, 5, rngs=rngs)
    return lambda x: last(nnx.silu(first(x)).mean((1, 2)))


def save(build: Callable[[Any, Any], Callable[[Any], Any]], path: Path) -> None:
    from flax import nnx
    from jax2onnx import to_onnx

    to_onnx(
        build(nnx, nnx.Rngs(0)), inputs=[(1, 8, 8, 3)], input_names=["image"], return_mode="file", output_path=str(path)
    )


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for build in (mlp, cnn, normed, gated):
        yield f"flax_{build.__name__}", "jax2onnx", partial(save, build)
