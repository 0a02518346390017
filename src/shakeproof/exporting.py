"""A query for other verifiers: the network with the perturbation in front of it, and the question as VNN-LIB.

(The module is not called `export`: importing it would hide the function `shakeproof.export`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from shakeproof.errors import InputError
from shakeproof.files import write_whole
from shakeproof.model import Network, load
from shakeproof.question import (
    Perturbation,
    Picture,
    Query,
    Strength,
    parse_path,
    perturbed,
    perturbed_directives,
    robustness,
    written,
    written_perturbed,
)

Format = Literal["augmented", "vnnlib", "perturbed"]

AUGMENTED, QUERY, PERTURBED = "augmented.onnx", "query.vnnlib", "perturbed.vnnlib"
PREFIX = "shakeproof_"
# Before these versions, operators broadcast, and Clip takes its limits, in other ways.
OLDEST_OPSET, CLIP_TAKES_INPUTS, INITIALIZERS_ARE_NO_INPUTS = 7, 11, 4


@dataclass(frozen=True)
class Exported:
    """Where the files are. `augmented` is None if only the query was asked for."""

    model: str
    augmented: Path | None
    query: Path
    label: int

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        augmented = None if self.augmented is None else str(self.augmented)
        return {"model": self.model, "augmented": augmented, "query": str(self.query), "label": self.label}


def export(
    model: str | Path,
    image: Picture,
    perturbation: Perturbation | str,
    strength: Strength,
    folder: str | Path,
    label: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    image_shape: tuple[int, int, int] | None = None,
    output_name: str | None = None,
    form: Format = "augmented",
) -> Exported:
    """Write a query for other verifiers: augmented.onnx, from strengths to scores, and query.vnnlib about it.

    `model` is an ONNX file. Without a `label`, the image's own or else the class predicted at strength 0 is taken.
    The form `vnnlib` leaves out the network, `perturbed` writes the image and the perturbation to perturbed.vnnlib.
    """
    if not isinstance(model, (str, Path)):
        name = type(model).__name__
        raise InputError(f"{name}: export takes an ONNX file; load(module, example_input, save=...) writes one")
    network = load(model, image_shape=image_shape, mean=mean, std=std, output_name=output_name)
    (query,) = perturbed(network, [image], parse_path(perturbation), label, strength)
    return write_query(model, network, query, folder, form)


def write_query(
    model: str | Path,
    network: Network,
    query: Query,
    folder: str | Path,
    form: Format = "augmented",
) -> Exported:
    """Write a query about the network that was loaded from `model`, with its normalisation if it has one.

    The form `vnnlib` leaves out the network: another strength or label asks about the same one. `perturbed` says in one
    file which image is perturbed and how, for shakeproof itself.
    """
    label = query.label
    assert label is not None
    if form == "perturbed":
        file = Path(folder) / PERTURBED
        write_whole({file: _perturbed(network, query, label).encode(errors="backslashreplace")})
        return Exported(str(model), None, file, label)
    augmented = _augmented(onnx.load_from_string(network.data), network, query).SerializeToString()
    question = _question(network, query, label).encode(errors="backslashreplace")
    network_file, query_file = Path(folder) / AUGMENTED, Path(folder) / QUERY
    if form == "augmented":
        write_whole({network_file: augmented, query_file: question})
        return Exported(str(model), network_file, query_file, label)
    if network_file.exists() and network_file.read_bytes() != augmented:
        raise InputError(f"{network_file}: is about another image or perturbation; export into another folder")
    write_whole({query_file: question})
    return Exported(str(model), None, query_file, label)


# -- the network ------------------------------------------------------------------------------------------------------


def _augmented(model: onnx.ModelProto, network: Network, query: Query) -> onnx.ModelProto:
    """The model, fed by the perturbed image instead of its input; its own nodes stay as they are."""
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset < OLDEST_OPSET:
        raise InputError(f"{network.name}: is of ONNX opset {opset}; convert it to {OLDEST_OPSET} or newer")
    front = _Front(model)
    assert query.path is not None
    layout, path = network.picture(), query.path.path
    slopes = path.slopes.reshape(path.parameters, -1)
    value = front.name("z")
    start = helper.make_tensor_value_info(value, TensorProto.FLOAT, [1, len(slopes)])
    base = path.base.reshape(1, -1)
    value = front.node("Gemm", value, front.constant("R_A", slopes.t()), front.constant("R_B", base), transB=1)
    clip = path.clip
    if clip is not None and opset >= CLIP_TAKES_INPUTS:
        limits = (front.constant(name, torch.tensor(v)) for name, v in zip(("low", "high"), clip, strict=True))
        value = front.node("Clip", value, *limits)
    elif clip is not None:
        value = front.node("Clip", value, min=clip[0], max=clip[1])
    if network.normalisation is not None:
        mean, std = network.normalisation.as_inputs(layout)
        for operator, name, entries in (("Sub", "mean", mean), ("Div", "std", std)):
            value = front.node(operator, value, front.constant(name, entries.reshape(1, -1)))
    (image,) = (i for i in model.graph.input if i.name not in front.weights)
    dtype = image.type.tensor_type.elem_type
    if dtype != TensorProto.FLOAT:
        value = front.node("Cast", value, to=dtype)
    front.node("Reshape", value, front.constant("shape", torch.tensor(layout.input_shape)), output=image.name)
    _fix_batch(model.graph, image)
    return front.attached(model, image, start)


class _Front:
    """Nodes to go before a model, under names that it does not use itself."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.taken = set(_names(model.graph))
        self.weights = {tensor.name for tensor in model.graph.initializer}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def name(self, wanted: str) -> str:
        while wanted in self.taken:
            wanted = PREFIX + wanted
        self.taken.add(wanted)
        return wanted

    def constant(self, name: str, values: Tensor) -> str:
        array = values.numpy()
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                array = array.astype(np.float32)
            if not np.isfinite(array).all():
                raise InputError(f"{name} has numbers beyond float32, in which it is exported; scale the image down")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), self.name(name)))
        return self.constants[-1].name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return its output's name."""
        made = self.name(f"z_{operator.lower()}")
        result = made if output is None else output
        self.nodes.append(helper.make_node(operator, inputs, [result], made, **attributes))
        return result

    def attached(
        self, model: onnx.ModelProto, image: onnx.ValueInfoProto, start: onnx.ValueInfoProto
    ) -> onnx.ModelProto:
        """The model behind these nodes, with `start` in place of its input `image`."""
        graph = model.graph
        graph.input.remove(image)
        graph.input.insert(0, start)
        if model.ir_version < INITIALIZERS_ARE_NO_INPUTS:
            graph.input.extend(helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in self.constants)
        graph.initializer.extend(self.constants)
        behind = list(graph.node)
        del graph.node[:]
        graph.node.extend((*self.nodes, *behind))
        return model


def _names(graph: onnx.GraphProto) -> Iterator[str]:
    """Every name that a graph uses, of nodes and of values, with those of the graphs inside its nodes."""
    for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        yield named.name
    for sparse in graph.sparse_initializer:
        yield sparse.values.name
    for node in graph.node:
        yield from (node.name, *node.input, *node.output)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                yield from _names(inner)


def _fix_batch(graph: onnx.GraphProto, image: onnx.ValueInfoProto) -> None:
    """Where shapes leave the batch size open, it is 1 now."""
    batch = image.type.tensor_type.shape.dim[0]
    if batch.dim_value > 0:
        return
    if batch.dim_param:
        shapes = [value.type.tensor_type.shape for value in (*graph.output, *graph.value_info)]
        open_sizes = [dim for shape in shapes for dim in shape.dim if dim.dim_param == batch.dim_param]
    else:  # without a name, only the scores' first axis is known to be the batch
        scores = graph.output[0].type.tensor_type.shape.dim
        open_sizes = [dim for dim in scores[:1] if len(scores) > 1 and dim.dim_value <= 0]
    for dim in open_sizes:
        dim.dim_value = 1


# -- the question -----------------------------------------------------------------------------------------------------


def _question(network: Network, query: Query, label: int) -> str:
    """VNN-LIB 1.0: are there strengths in the box at which another class scores no less than the label?"""
    facts = {
        "model": network.name,
        "image": query.name,
        "perturbation": query.perturbation,
        "label": label,
        "strength": ",".join(map(repr, query.strengths)),
    }
    highest = np.array(query.strengths)
    comments = (
        f"For {AUGMENTED}: X are strengths, Y class scores. unsat: the label wins at all strengths in the box.",
        *(f"{name}: {' '.join(str(fact).split())}" for name, fact in facts.items()),
    )
    return written(robustness(0 * highest, highest, label, network.graph.classes), comments)


def _perturbed(network: Network, query: Query, label: int) -> str:
    """VNN-LIB 1.0: the image as a box of one point, and in comments what happens to it."""
    assert query.image is not None
    layout, normalised = network.picture(), network.normalisation
    pixels = layout.to_input(query.image.pixels).reshape(-1).numpy()
    mean, std = (None, None) if normalised is None else (normalised.mean, normalised.std)
    directives = perturbed_directives(str(query.perturbation), query.strengths, mean, std, layout.image_shape)
    specification = robustness(pixels, pixels, label, network.graph.classes)
    return written_perturbed(replace(specification, directives=directives))
