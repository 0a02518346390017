"""An int8 twin of a float network, as it would be deployed: by onnxruntime's static quantiser, in the QDQ format.

    python benchmarks/quantised.py MODEL.onnx PICTURES.npz INT8.onnx [--calibrate 500:700]

PICTURES.npz has bytes, x (n, height, width, channels), and their classes, y. The ranges of activations are those that
some of the pictures give; how many of the others each network gets right is printed beside how many both say the same
of.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quant_pre_process, quantize_static

import shakeproof as sp


class Pictures(CalibrationDataReader):
    """Pictures (n, *input_shape), handed to the quantiser one by one."""

    def __init__(self, name: str, pictures: NDArray[np.float32]) -> None:
        self.left = iter([{name: picture} for picture in pictures])

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self.left, None)


def as_inputs(pictures: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Bytes (n, height, width, channels) for a network that takes one picture, channels first, from 0 to 1."""
    return (pictures.transpose(0, 3, 1, 2)[:, None] / 255).astype(np.float32)


def quantise(model: Path, pictures: NDArray[np.float32], int8: Path) -> None:
    """Write the int8 twin of a model with one input; `pictures` (n, *input_shape) say which values activations take."""
    import onnx

    name = onnx.load(model, load_external_data=False).graph.input[0].name
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.onnx"
        quant_pre_process(model, ready, skip_symbolic_shape=True)
        reader, signed = Pictures(name, pictures), QuantType.QInt8
        quantize_static(ready, int8, reader, QuantFormat.QDQ, activation_type=QuantType.QUInt8, weight_type=signed)


@click.command()
@click.argument("model", type=Path)
@click.argument("pictures", type=Path)
@click.argument("int8", type=Path)
@click.option("--calibrate", default="500:700", show_default=True, metavar="FROM:TO", help="Which pictures to see.")
def main(model: Path, pictures: Path, int8: Path, calibrate: str) -> None:
    """Quantise, and look at what it costs."""
    archive = np.load(pictures)
    x, y = as_inputs(archive["x"]), archive["y"]
    seen = slice(*map(int, calibrate.split(":")))
    quantise(model, x[seen], int8)
    others = np.delete(np.arange(len(x)), seen)
    found = {path: sp.load_deployed(path).reference(x[others]).argmax(1) for path in (model, int8)}
    for path, classes in found.items():
        print(f"{path}: {path.stat().st_size} bytes, {(classes == y[others]).mean():.1%} of {len(others)} right")
    print(f"the same class for {(found[model] == found[int8]).mean():.1%}")


if __name__ == "__main__":
    main()
