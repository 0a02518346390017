"""PyTorch modules as ONNX files, by PyTorch's own exporter: the file is what is read, compared and certified."""

from __future__ import annotations

import ast
import io
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils import _pytree as pytree

from shakeproof.errors import InputError
from shakeproof.model.onnx_model import chosen_outputs, first_line

if TYPE_CHECKING:
    import onnx

TYPES = (torch.float32, torch.float64)
# PyTorch's softplus is the identity above this, unless it is told otherwise.
SOFTPLUS_THRESHOLD = 20.0
# How the exporter names an operator that it has no ONNX operators for.
MISSING = re.compile(r"No ONNX function found for <OpOverload\(op='([\w.]+)'")
# Where the exporter says which part of a module a node comes from: a list of names, the operator's own at its end.
SCOPES = "pkg.torch.onnx.name_scopes"


@dataclass(frozen=True, eq=False)
class Export:
    """A module's ONNX file, and the module of which it has all outputs. `note` says which outputs, of several."""

    data: bytes
    module: torch.nn.Module
    dtype: torch.dtype
    note: str | None

    def scores(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """What the module itself gives for inputs (n, *input_shape): (n, classes)."""
        with _evaluating(self.module), torch.no_grad():
            rows = [_flat(self.module(row)) for row in torch.from_numpy(x).to(self.dtype)]
        return torch.stack(rows).float().numpy()


def exported(module: torch.nn.Module, example: Tensor | None, output_name: str | None = None) -> Export:
    """The ONNX file of a module in evaluation mode, with the outputs that are meant, and a free batch size where the
    module has one.
    """
    name = type(module).__name__
    image = _first(example, name)
    with _evaluating(module):
        outputs = _outputs(module, image, name)
        chosen = chosen_outputs({key: list(value.shape) for key, value in outputs.items()}, output_name, name)
        taken = module if list(outputs) == [""] else _Outputs(module, chosen)
        model = _model(taken, image, name, chosen if len(chosen) > 1 else None)
    note = f"of the outputs ({', '.join(outputs)}), {chosen[0]} is analysed" if len(outputs) > 1 else None
    note = f"the outputs {', '.join(chosen)} are analysed together" if len(chosen) > 1 else note
    return Export(_tidied(model).SerializeToString(), taken, image.dtype, note)


def _first(example: Tensor | None, name: str) -> Tensor:
    """The first image of an example input."""
    if example is None:
        raise InputError("a torch module needs an example input: load(module, example_input)")
    if not isinstance(example, Tensor) or not example.dim() or not example.numel():
        raise InputError(f"{name}: the example input must be a tensor of one or more images, with the batch axis first")
    if example.dtype not in TYPES:
        raise InputError(f"{name}: the example input is of type {example.dtype}; give float32 or float64 numbers")
    return example[:1].detach()


class _Outputs(torch.nn.Module):
    """Some outputs of a module that has several, or that holds one in a dictionary, a tuple or the like."""

    def __init__(self, module: torch.nn.Module, keys: tuple[str, ...]) -> None:
        super().__init__()
        self.module, self.keys = module, keys

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        outputs = _floats(self.module(x))
        several = tuple(outputs[key] for key in self.keys)
        return several[0] if len(several) == 1 else several


def _flat(outputs: Tensor | tuple[Tensor, ...]) -> Tensor:
    """Outputs for one input, each flattened, one after another."""
    return torch.cat([one.reshape(-1) for one in ([outputs] if isinstance(outputs, Tensor) else outputs)])


def _floats(output: Any) -> dict[str, Tensor]:
    """The tensors of floats that a module gives, by their names: keys and numbers, or "" for a single tensor."""
    leaves, _ = pytree.tree_flatten_with_path(output)
    named = {".".join(map(_key, path)): leaf for path, leaf in leaves}
    return {key: leaf for key, leaf in named.items() if isinstance(leaf, Tensor) and leaf.is_floating_point()}


def _key(key: Any) -> str:
    """A step into a dictionary, a sequence or an object."""
    return str(next(getattr(key, kind) for kind in ("key", "idx", "name") if hasattr(key, kind)))


def _outputs(module: torch.nn.Module, example: Tensor, name: str) -> dict[str, Tensor]:
    """What the module gives for its example input."""
    try:
        with torch.no_grad():
            output = module(example)
    except Exception as error:  # a module's code raises whatever it likes
        shape = list(example.shape)
        raise InputError(f"{name}: does not run on the example input of shape {shape} ({first_line(error)})") from error
    outputs = _floats(output)
    if not outputs:
        raise InputError(f"{name}: gives no tensor of floating-point numbers; shakeproof needs class scores")
    return outputs


# -- PyTorch's exporter -----------------------------------------------------------------------------------------------


def _model(module: torch.nn.Module, example: Tensor, name: str, outputs: Sequence[str] | None) -> onnx.ModelProto:
    """The exporter's model: with a free batch size, or for one image where the module has none or export fails so."""
    try:
        with _silence():
            for free in (True, False):
                shapes = ({0: torch.export.Dim.AUTO},) if free else None
                try:
                    program = torch.onnx.export(
                        module,
                        (example,),
                        dynamo=True,
                        verbose=False,
                        dynamic_shapes=shapes,
                        output_names=outputs,
                        custom_translation_table={torch.ops.aten.softplus.default: _softplus},
                    )
                    break
                except Exception:  # the exporter raises whatever the module's code makes it meet
                    if not free:
                        raise
    except Exception as error:
        raise InputError(f"{name}: PyTorch cannot export it to ONNX: {_why(module, example, error)}") from error
    assert program is not None
    model: onnx.ModelProto = program.model_proto
    return model


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    """ONNX's own, without the exporter's jump from log(1 + exp(x)) to x: from 20 on, both are one float32 number."""
    import onnxscript

    op: Any = onnxscript.opset18
    if beta == 1:
        curved, scaled = op.Softplus(x), x
    else:
        scaled = op.Mul(x, op.CastLike(op.Constant(value_float=beta), x))
        curved = op.Div(op.Softplus(scaled), op.CastLike(op.Constant(value_float=beta), x))
    if threshold >= SOFTPLUS_THRESHOLD:
        return curved
    return op.Where(op.Greater(scaled, op.CastLike(op.Constant(value_float=threshold), x)), x, curved)


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """The module in evaluation mode; afterwards each of its parts is in the mode it was in."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, mode in before:
            part.training = mode


@contextmanager
def _silence() -> Iterator[None]:
    """The exporter logs, warns and prints, even where all is well."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _why(module: torch.nn.Module, example: Tensor, error: BaseException) -> str:
    """The first cause of the exporter's error, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    if "data-dependent" in first_line(error):
        return "its code branches on numbers that it computes"
    missing = MISSING.search(str(error))
    if missing is None:
        return first_line(error)
    return f"the operator {missing[1]}{_where(module, example, missing[1])} has no counterpart in ONNX"


def _where(module: torch.nn.Module, example: Tensor, operator: str) -> str:
    """The part of a module that calls an operator, if it is found."""
    try:
        with _silence():
            nodes = torch.export.export(module, (example,)).graph.nodes
    except Exception:  # the place is a help, and no more
        return ""
    calls = (node for node in nodes if str(node.target).startswith(f"{operator}."))
    places = (list(node.meta.get("nn_module_stack", {}).values()) for node in calls)
    place = next((stack[-1][0] for stack in places if stack), "")
    return f" (in {place})" if place else ""


def _tidied(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without where on this machine its source was. Its nodes are named after the parts of the module."""
    graph = model.graph
    used: Counter[str] = Counter()
    for node in graph.node:
        place = next((entry.value for entry in node.metadata_props if entry.key == SCOPES), None)
        if place is not None:
            node.name = "/".join(filter(None, ast.literal_eval(place)[-2:]))
        used[node.name] += 1
        if used[node.name] > 1:
            node.name = f"{node.name}:{used[node.name]}"
    batch = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim[:1]:
            if dim.dim_param and dim.dim_param == batch:
                dim.dim_param = "batch"
    del graph.value_info[:]
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output, *model.functions):
        del part.metadata_props[:]
    return model
