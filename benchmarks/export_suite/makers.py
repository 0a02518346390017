"""Who writes the files: for each exporter its models, as `MODEL@EXPORTER.onnx` in a folder.

An exporter that is not installed is skipped, and said to be: some cannot be installed together, so the folder may be
filled by several environments in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from . import boosted, by_hand, jax_models, keras_models, scripted, sklearn_models

Make = Callable[[Path], None]
LEGACY = "torch.onnx-legacy"  # with dynamo=False


def torch_files(name: str, exporter: str) -> Make:
    """A torch model, written by one of torch's two exporters, or by `sp.load`, which uses the newer one."""

    def make(path: Path) -> None:
        import torch

        from .torch_models import made

        module, shape = made(name)
        example = torch.rand(1, *shape, dtype=next(module.parameters()).dtype if name == "float64" else torch.float32)
        if exporter == "sp.load":
            import shakeproof as sp

            sp.load(module, example, save=path)
            return
        axes = {0: "n", 2: "h", 3: "w"} if name == "dynamic_size" else None
        torch.onnx.export(
            *(module, (example,), path),
            input_names=["image"],
            dynamo=exporter == "torch.onnx",
            **({"opset_version": 17} if exporter == LEGACY else {"external_data": False, "verbose": False}),
            **_dynamic(axes, exporter),
        )  # fmt: skip

    return make


def _dynamic(axes: dict[int, str] | None, exporter: str) -> dict[str, object]:
    """Free axes in each exporter's own words."""
    if axes is None:
        return {}
    if exporter == LEGACY:
        return {"dynamic_axes": {"image": axes}}
    from torch.export import Dim

    return {"dynamic_shapes": (dict.fromkeys(axes, Dim.DYNAMIC),)}


def quantised(path: Path) -> None:
    """int8 between QuantizeLinear and DequantizeLinear, by onnxruntime's static quantisation."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

    class Pictures(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter(np.random.default_rng(0).random((8, 1, 1, 16, 16), dtype=np.float32))

        def get_next(self) -> dict[str, object] | None:
            return next(({"image": picture} for picture in self.left), None)

    original = path.with_suffix(".original")
    torch_files("lenet", LEGACY)(original)
    quantize_static(original, path, Pictures(), quant_format=QuantFormat.QDQ)
    original.unlink()


def optimised(path: Path) -> None:
    """What onnxruntime makes of a network for itself, with operators of its own."""
    import onnxruntime

    original = path.with_suffix(".original")
    torch_files("lenet", LEGACY)(original)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.optimized_model_filepath, options.log_severity_level = str(path), 4
    onnxruntime.InferenceSession(original, options, providers=["CPUExecutionProvider"])
    original.unlink()


def of_torch() -> Iterator[tuple[str, str, Make]]:
    """Every torch model, written by each of torch's exporters."""
    from .torch_models import MODELS
    from .transformers_models import CONFIGURATIONS

    for exporter in (LEGACY, "torch.onnx", "sp.load"):
        for name in (*MODELS, *CONFIGURATIONS):
            yield name, exporter, torch_files(name, exporter)
    yield "int8_qdq", "onnxruntime", quantised
    yield "optimised", "onnxruntime", optimised


def all_makers() -> Iterator[tuple[str, str, Make]]:
    """(model, exporter, maker) of every file that can be made here."""
    if find_spec("torch"):
        yield from of_torch()
    for others in (keras_models, jax_models, sklearn_models, boosted, by_hand, scripted):
        yield from others.makers()
