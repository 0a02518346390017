"""A query for other verifiers: the network with the perturbation in front of it, and the question as VNN-LIB.

(The module is not called `export`: importing it would hide the function `shakeproof.export`.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import onnx
import onnx.shape_inference
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

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
    """The written files. `augmented` is None if only the query was wanted."""

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
    rewrite: bool = False,
) -> Exported:
    """Write a query for other verifiers: augmented.onnx, from strengths to scores, and query.vnnlib about it.

    `model` is an ONNX file. Without a `label`, the image's own or else the class predicted at strength 0 is taken.
    The form `vnnlib` leaves out the network, `perturbed` writes the image and the perturbation to perturbed.vnnlib.
    `rewrite` writes max pooling as ReLUs and folds the network's leading normalisation into the perturbation.
    """
    if not isinstance(model, (str, Path)):
        name = type(model).__name__
        raise InputError(f"{name}: export takes an ONNX file; load(module, example_input, save=...) writes one")
    network = load(model, image_shape=image_shape, mean=mean, std=std, output_name=output_name)
    (query,) = perturbed(network, [image], parse_path(perturbation), label, strength)
    return write_query(model, network, query, folder, form, rewrite)


def write_query(
    model: str | Path,
    network: Network,
    query: Query,
    folder: str | Path,
    form: Format = "augmented",
    rewrite: bool = False,
) -> Exported:
    """Write a query about the network that was loaded from `model`, with its normalisation if it has one.

    The form `vnnlib` leaves out the network: another strength or label asks about the same one. `perturbed` says in one
    file which image is perturbed and how, for shakeproof itself. `rewrite` serves verifiers that read fewer operators.
    """
    label = query.label
    assert label is not None
    if form == "perturbed":
        if query.photograph is not None:
            raise InputError(
                f"{query.perturbation}: the form perturbed holds the picture that a network takes, not the photograph;"
                " export another form"
            )
        file = Path(folder) / PERTURBED
        write_whole({file: _perturbed(network, query, label).encode(errors="backslashreplace")})
        return Exported(str(model), None, file, label)
    if isinstance(query.perturbation, Perturbation):
        query.perturbation.check_straight("other verifiers are asked")
    augmented = _augmented(onnx.load_from_string(network.data), network, query, rewrite).SerializeToString()
    question = _question(network, query, label).encode(errors="backslashreplace")
    network_file, query_file = Path(folder) / AUGMENTED, Path(folder) / QUERY
    if form == "augmented":
        write_whole({network_file: augmented, query_file: question})
        return Exported(str(model), network_file, query_file, label)
    if network_file.exists() and network_file.read_bytes() != augmented:
        raise InputError(f"{network_file}: was exported for another image or perturbation; choose another folder")
    write_whole({query_file: question})
    return Exported(str(model), None, query_file, label)


# -- the network ------------------------------------------------------------------------------------------------------


def _augmented(model: onnx.ModelProto, network: Network, query: Query, rewrite: bool) -> onnx.ModelProto:
    """The model, fed by the perturbed image instead of its input; its own nodes stay as they are unless rewritten."""
    opset = max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)
    if opset < OLDEST_OPSET:
        raise InputError(f"{network.name}: is of ONNX opset {opset}; convert it to {OLDEST_OPSET} or newer")
    front = _Front(model)
    assert query.path is not None
    layout, path, normalised = network.picture(), query.path.path, network.normalisation
    line = _Line(path.slopes.reshape(path.parameters, -1).numpy(), path.base.reshape(-1).numpy())
    (image,) = (i for i in model.graph.input if i.name not in front.weights)
    fed = image.name
    if normalised is not None and path.clip is None:
        mean, std = (entries.reshape(-1).numpy() for entries in normalised.as_inputs(layout))
        line = line.changed("Sub", mean).changed("Div", std)
    if rewrite:
        pooling_as_relus(model, front, network.name)
        if path.clip is None:
            line, fed = _with_leading_nodes(model.graph, line, fed, layout.input_shape)
    start = helper.make_tensor_value_info(front.name("z"), TensorProto.FLOAT, [1, len(line.slopes)])
    # A bias of one axis and an open batch size: other verifiers read no other form.
    parts = front.constant("R_A", line.slopes.T), front.constant("R_B", line.base)
    value = front.node("Gemm", start.name, *parts, transB=1)
    if path.clip is not None:
        if opset < CLIP_TAKES_INPUTS:
            value = front.node("Clip", value, min=path.clip[0], max=path.clip[1])
        else:
            low, high = (np.array(end) for end in path.clip)
            value = front.node("Clip", value, front.constant("low", low), front.constant("high", high))
        if normalised is not None:
            for operator, name, entries in zip(
                ("Sub", "Div"), ("mean", "std"), normalised.as_inputs(layout), strict=True
            ):
                value = front.node(operator, value, front.constant(name, entries.reshape(1, -1).numpy()))
    dtype = image.type.tensor_type.elem_type
    if dtype != TensorProto.FLOAT:
        value = front.node("Cast", value, to=dtype)
    shape = front.constant("shape", np.array([-1, *layout.input_shape[1:]], np.int64))
    front.node("Reshape", value, shape, output=fed)
    _fix_batch(model.graph, image)
    return front.attached(model, image, start)


class _Line(NamedTuple):
    """x(z) = slopes^T z + base, for the flat input: slopes (parameters, n) and base (n)."""

    slopes: NDArray[np.float64]
    base: NDArray[np.float64]

    def changed(self, operator: str, constant: NDArray[np.float64], reverse: bool = False) -> _Line:
        """The line behind an elementwise operator with a constant; `reverse`: the constant stands first."""
        if operator == "Add":
            return _Line(self.slopes, self.base + constant)
        if operator == "Sub":
            return _Line(-self.slopes, constant - self.base) if reverse else _Line(self.slopes, self.base - constant)
        factor = constant if operator == "Mul" else 1 / constant
        return _Line(self.slopes * factor, self.base * factor)


def _with_leading_nodes(graph: onnx.GraphProto, line: _Line, fed: str, shape: Sequence[int]) -> tuple[_Line, str]:
    """Fold the leading sums and products with constants into the line; the name of the value behind them."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        n.output[0]: n.attribute[0].t for n in graph.node if n.op_type == "Constant" and n.attribute[0].HasField("t")
    }
    outputs = {output.name for output in graph.output}
    while True:
        readers = [node for node in graph.node if fed in node.input]
        if len(readers) != 1 or fed in outputs or readers[0].op_type not in ("Add", "Sub", "Mul", "Div"):
            return line, fed
        (node,) = readers
        reverse = node.input[1] == fed
        other = constants.get(node.input[0] if reverse else node.input[1])
        if other is None or (reverse and node.op_type == "Div"):
            return line, fed
        entries = numpy_helper.to_array(other).astype(np.float64)
        if np.broadcast_shapes(entries.shape, tuple(shape)) != tuple(shape):
            return line, fed
        line = line.changed(node.op_type, np.broadcast_to(entries, shape).reshape(-1), reverse)
        graph.node.remove(node)
        fed = node.output[0]


def pooling_as_relus(model: onnx.ModelProto, front: _Front, name: str) -> None:
    """Write each max pooling as convolutions that pick the entries of its windows, and max(a, b) as a + ReLU(b - a)."""
    if not any(node.op_type == "MaxPool" for node in model.graph.node):
        return
    inferred = onnx.shape_inference.infer_shapes(model).graph
    shapes = {value.name: value.type.tensor_type.shape.dim for value in (*inferred.value_info, *inferred.input)}
    makers = {node.output[0]: node.op_type for node in model.graph.node}
    nodes = []
    for node in model.graph.node:
        if node.op_type != "MaxPool":
            nodes.append(node)
            continue
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        kernel, pads = attributes["kernel_shape"], attributes.get("pads", [0, 0, 0, 0])
        is_plain = (
            len(kernel) == 2
            and len(node.output) == 1
            and not attributes.get("ceil_mode", 0)
            and attributes.get("auto_pad", b"NOTSET") == b"NOTSET"
            and set(attributes.get("dilations", [1])) == {1}
            and (not any(pads) or makers.get(node.input[0]) == "Relu")  # there, zeros at the border change no maximum
        )
        if not is_plain or node.input[0] not in shapes:
            raise InputError(f"{name}: the max pooling {node.name or node.output[0]} cannot be written as ReLUs")
        channels, (height, width) = shapes[node.input[0]][1].dim_value, kernel
        taps = np.eye(height * width).reshape(-1, 1, 1, height, width).repeat(channels, 1)
        options = {
            "group": channels,
            "strides": attributes.get("strides", [1, 1]),
            "pads": pads,
            "kernel_shape": kernel,
        }
        before = len(front.nodes)
        values = [front.node("Conv", node.input[0], front.constant("tap", tap), **options) for tap in taps]
        while len(values) > 1:
            output, larger = node.output[0] if len(values) == 2 else None, []
            for first, second in zip_longest(values[::2], values[1::2]):
                rest = second and front.node("Relu", front.node("Sub", second, first))
                larger.append(front.node("Add", first, rest, output=output) if rest else first)
            values = larger
        nodes += front.nodes[before:]
        del front.nodes[before:]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


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

    def constant(self, name: str, array: NDArray[Any]) -> str:
        if array.dtype.kind == "f":
            with np.errstate(over="ignore"):
                array = array.astype(np.float32)
            if not np.isfinite(array).all():
                raise InputError(f"{name} has numbers too large for float32, the export format; scale the image down")
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), self.name(name)))
        return self.constants[-1].name

    def node(self, operator: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        """Add a node and return its output's name."""
        name = self.name(f"z_{operator.lower()}")
        self.nodes.append(helper.make_node(operator, inputs, [output or name], name, **attributes))
        return output or name

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
        nodes = [*self.nodes, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
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
