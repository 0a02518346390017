"""An ONNX model as its reader wants it: one input of a fixed size, the outputs that are meant, no functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, inliner, numpy_helper

from shakeproof.errors import InputError, UnsupportedNetworkError, by

STANDARD_DOMAINS = ("", "ai.onnx")
# Types that values may be turned into: others round them.
FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE)
SIXTEEN_BITS = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
RUNNABLE = (*FLOATS, TensorProto.FLOAT16, TensorProto.UINT8)
# What comes between an ArgMax and a label: a change of type or shape, a look-up in the list of labels.
LABEL_MOVES = {"Cast": 0, "Reshape": 0, "Squeeze": 0, "Identity": 0, "ArrayFeatureExtractor": 1, "Gather": 1}
# Functions are written out where they are called; those that call each other can make a short file endless.
MOST_NODES, DEEPEST_CALLS = 200_000, 50
# What outputs with class scores are called; the first of these that is there is meant.
USUAL_NAMES = ("logits", "scores", "probabilities", "output_probability", "output")
# What stands for all outputs, and what to do where not all of them can be meant.
EVERY = "*"
CHOOSE = "choose other outputs"
# Nothing that a picture becomes has more entries; a repetition to more is a mistake in the file.
LARGEST_VALUE = 10**8
Array = NDArray[Any]
Shape = tuple[int, ...]


class Unsupported(Exception):  # noqa: N818 - a finding, not a failure
    """An operator, or a use of one, that the graph cannot express; the reader collects these and continues."""


@dataclass(frozen=True)
class ChosenOutputs:
    """The values of a model that are analysed: one with the class scores, or several outputs; and what should be said.

    `ranks_only`: the output that is meant has other values than these, in the same order.
    """

    values: tuple[str, ...]
    note: str | None
    ranks_only: bool = False


def first_line(error: BaseException) -> str:
    """The first line of a foreign error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def word_of(node: onnx.NodeProto) -> str:
    """An operator's name; with its domain unless it is one of ONNX's own, so that no rule is found for it."""
    domain, kind = text_of(node.domain), text_of(node.op_type)
    return kind if domain in STANDARD_DOMAINS else f"{domain}::{kind}"


def text_of(word: str | bytes) -> str:
    """A name in a model; protobuf gives those that are no text as bytes."""
    return word if isinstance(word, str) else word.decode(errors="replace")


def check_complete(model: onnx.ModelProto, name: str) -> None:
    """Refuse a graph that lacks what it needs: outputs, dense weights, and nodes in an order in which they can run."""
    graph = model.graph
    if not graph.output:
        raise InputError(f"{name}: the network has no outputs; export it again, with its class scores as output")
    if graph.sparse_initializer:
        raise UnsupportedNetworkError(
            f"{name}: {len(graph.sparse_initializer)} weights are stored as sparse tensors, which is not supported;"
            " convert them to dense ones"
        )
    defined = {"", *(tensor.name for tensor in graph.initializer), *(value.name for value in graph.input)}
    computed = {output for node in graph.node for output in node.output}
    for node in graph.node:
        for needed in node.input:
            if needed not in defined:
                what = f"{name}: {word_of(node)} ({node.name or ', '.join(node.output)}) reads {needed!r}, which"
                raise InputError(
                    f"{what} is computed after it, or from it: the nodes form a cycle or are out of order"
                    if needed in computed
                    else f"{what} the file does not hold: a weight is missing"
                )
        defined.update(node.output)


# -- the outputs that are meant -------------------------------------------------------------------------------------


def chosen(model: onnx.ModelProto, name: str, output_name: str | None) -> ChosenOutputs:
    """The outputs that were asked for, or else the only one that can hold class scores, or else all of them."""
    shapes = {output.name: _shape(output) for output in model.graph.output}
    makers = {value: node for node in model.graph.node for value in node.output}
    held = {output.name: _held_by(output, makers) for output in model.graph.output}
    shown: dict[str, str] = {}  # by value, the last output that shows it, or the one that is it
    for output, value in held.items():
        if value is not None and shown.get(value) != value:
            shown[value] = output
    candidates = {output: shapes[output] for output in shown.values()} or shapes
    outputs = chosen_outputs(candidates if output_name is None else shapes, output_name, name)
    if len(outputs) > 1:
        for output in model.graph.output:
            if output.name in outputs and not _is_float(output):
                raise InputError(f"{name}: the output {output.name} holds no floats; {CHOOSE}", option="output_name")
        return ChosenOutputs(outputs, f"the outputs {', '.join(outputs)} are analysed together")
    (output,) = outputs
    value = held[output] or output  # or what makes it will be named as unsupported
    which = f"of the outputs ({', '.join(shapes)}), {output}" if len(shapes) > 1 else f"the output {output}"
    by = "" if value == output else f" by the scores that it is made from ({value})"
    note = f"{which} is analysed{by}" if by or len(shapes) > 1 else None
    return ChosenOutputs((value,), note, ranks_only=value != _unchanged(output, makers, _is_copy))


def chosen_outputs(shapes: Mapping[str, Sequence[int | str]], wanted: str | None, name: str) -> tuple[str, ...]:
    """The outputs that were asked for; or the one that alone can hold class scores, by its name or shape; or all."""
    if wanted is not None:
        words = [wanted] if wanted in shapes else list(shapes) if wanted == EVERY else wanted.split(",")
        unknown = [word for word in words if word not in shapes]
        if unknown or len({*words}) < len(words):
            listed = ", ".join(f"{output} [{', '.join(map(str, s))}]" if s else output for output, s in shapes.items())
            raise InputError(
                f"{name}: has no output {(unknown or words)[0]!r}; its outputs are {listed}", option="output_name"
            )
        return tuple(words)
    rows = [output for output, shape in shapes.items() if len(shape) == 2 and shape[1] not in (1, "1")]
    for choice in (list(shapes), [output for output in USUAL_NAMES if output in shapes][:1], rows):
        if len(choice) == 1:
            return tuple(choice)
    return tuple(shapes)


def _held_by(output: onnx.ValueInfoProto, makers: Mapping[str, onnx.NodeProto]) -> str | None:
    """The value with the class scores that an output shows, or shows the largest of; None if it shows neither."""
    kind = output.type.WhichOneof("value")
    if kind == "tensor_type" and not _is_float(output):
        return _behind_label(output.name, makers)
    value = _unchanged(output.name, makers)
    return value if kind in ("tensor_type", None) or value != output.name else None


def _is_float(output: onnx.ValueInfoProto) -> bool:
    is_tensor = output.type.WhichOneof("value") in ("tensor_type", None)
    return is_tensor and output.type.tensor_type.elem_type in (*FLOATS, TensorProto.UNDEFINED)


def _behind_label(value: str, makers: Mapping[str, onnx.NodeProto]) -> str | None:
    """The scores whose largest is a label."""
    while value in makers:
        node = makers[value]
        if word_of(node) == "ArgMax":
            over = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
            return _unchanged(node.input[0], makers) if over in (1, -1) else None
        if word_of(node) == f"{LEARNING_DOMAIN}::LinearClassifier" and len(node.output) > 1:
            return str(node.output[1])
        if node.op_type not in LABEL_MOVES or len(node.input) <= LABEL_MOVES[node.op_type]:
            return None
        value = node.input[LABEL_MOVES[node.op_type]]
    return None


def _is_copy(node: onnx.NodeProto) -> bool:
    """The same values, or a dictionary of them by label."""
    return word_of(node) in ("Identity", f"{LEARNING_DOMAIN}::ZipMap")


def _keeps_order(node: onnx.NodeProto) -> bool:
    """A copy, or each score's share of their sum: the largest stays the largest."""
    if word_of(node) == f"{LEARNING_DOMAIN}::Normalizer":
        return any(attribute.s in (b"L1", b"L2") for attribute in node.attribute)
    return _is_copy(node)


def _unchanged(
    value: str, makers: Mapping[str, onnx.NodeProto], keeps: Callable[[onnx.NodeProto], bool] = _keeps_order
) -> str:
    """The value that another one is a copy of, or is but for a positive factor."""
    while value in makers and makers[value].input and keeps(makers[value]):
        value = makers[value].input[0]
    return value


def _shape(value: onnx.ValueInfoProto) -> list[str]:
    return [_size(dim) for dim in value.type.tensor_type.shape.dim]


def with_outputs(model: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    """The model with some values as its only outputs."""
    changed, stated = onnx.ModelProto(), {output.name: output for output in model.graph.output}
    changed.CopyFrom(model)
    del changed.graph.output[:]
    changed.graph.output.extend(stated.get(value, onnx.ValueInfoProto(name=value)) for value in values)
    return changed


# -- the input ------------------------------------------------------------------------------------------------------


class ImageInput(NamedTuple):
    """The one input that is not a weight: its shape for one image, whether in float64, and what should be said."""

    name: str
    shape: Shape
    is_double: bool
    note: str | None = None


def image_input(model: onnx.ModelProto, name: str, picture: Shape | None, types: Sequence[int] = FLOATS) -> ImageInput:
    """The one input that is not a weight, of one of some types.

    `picture` (channels, height, width) decides where the shape leaves sizes open.
    """
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [i for i in model.graph.input if i.name not in weights]
    if len(inputs) != 1:
        listed = f" ({', '.join(i.name for i in inputs)})" if inputs else ""
        raise UnsupportedNetworkError(
            f"{name}: the network has {len(inputs)} inputs{listed}; shakeproof needs one image in, class scores out"
        )
    kind = inputs[0].type.tensor_type.elem_type
    if kind not in types:
        raise UnsupportedNetworkError(
            f"{name}: the input is not float32 or float64; export the network for one of them"
        )
    dims = list(inputs[0].type.tensor_type.shape.dim)
    if any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in dims):
        raise InputError(f"{name}: the input's shape {_dims(dims)} has no entries; export it with batch size 1")
    shape = [max(0, dim.dim_value) for dim in dims]  # 0: open
    if len(shape) > 1 and shape[0] == 0:
        shape[0] = 1
    if shape and 0 not in shape:
        _check_batch(shape, name)
        return ImageInput(inputs[0].name, tuple(shape), kind == TensorProto.DOUBLE)
    if picture is None:
        raise InputError(
            f"{name}: the input's shape {_dims(dims)} leaves its size open; give the shape of the pictures",
            option="image_shape",
        )
    for fitting in _as_inputs(picture):
        if len(fitting) == len(shape) and all(size in (0, wanted) for size, wanted in zip(shape, fitting, strict=True)):
            note = (
                f"the network's input {_dims(dims)} leaves its size open: it is analysed for pictures of {by(picture)}"
            )
            return ImageInput(inputs[0].name, fitting, kind == TensorProto.DOUBLE, note)
    raise InputError(f"{name}: a picture of {by(picture)} does not fit the network's input {_dims(dims)}")


def _as_inputs(picture: Shape) -> Iterator[Shape]:
    """What a picture may be as an input: channels first or last, without channels, flat."""
    channels, height, width = picture
    yield (1, channels, height, width)
    yield (1, height, width, channels)
    if channels == 1:
        yield (1, height, width)
    yield (1, prod(picture))


def _check_batch(shape: Sequence[int], name: str) -> None:
    if len(shape) in (2, 4) and shape[0] != 1:
        raise UnsupportedNetworkError(
            f"{name}: the input's batch size is {shape[0]}; export the network with batch size 1 or dynamic"
        )


def _dims(dims: Sequence[onnx.TensorShapeProto.Dimension]) -> str:
    return f"[{', '.join(map(_size, dims))}]"


def _size(dim: onnx.TensorShapeProto.Dimension) -> str:
    return dim.dim_param or (str(dim.dim_value) if dim.HasField("dim_value") else "?")


# -- functions ------------------------------------------------------------------------------------------------------


def inlined(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with the functions that it brings along written out where they are called."""
    functions = {(f.domain, f.name, f.overload): f for f in model.functions if f.domain not in STANDARD_DOMAINS}
    if not functions:
        return model
    sizes: dict[tuple[str, str, str], int] = {}

    def size(nodes: Sequence[onnx.NodeProto], depth: int) -> int:
        if depth > DEEPEST_CALLS:
            raise InputError(f"{name}: its functions call each other in a cycle, or more than {DEEPEST_CALLS} deep")
        return sum(called(node, depth) for node in nodes)

    def called(node: onnx.NodeProto, depth: int) -> int:
        key = (node.domain, node.op_type, node.overload)
        if key not in functions:
            return 1
        if key not in sizes:
            sizes[key] = size(functions[key].node, depth + 1)
        return sizes[key]

    if size(model.graph.node, 0) > MOST_NODES:
        raise InputError(f"{name}: its functions expand to more than {MOST_NODES} operators")
    return inliner.inline_local_functions(model)


def needed(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in their order."""
    wanted, nodes = {output.name for output in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted.update(_reads(node))
            nodes.append(node)
    return nodes[::-1]


def _reads(node: onnx.NodeProto) -> Iterator[str]:
    """What a node reads, also from within a graph of its own."""
    yield from node.input
    for attribute in node.attribute:
        for inner in (attribute.g, *attribute.graphs):
            for deeper in inner.node:
                yield from _reads(deeper)


# -- scikit-learn's classifiers, as skl2onnx writes them, in plain operators ------------------------------------------

LEARNING_DOMAIN = "ai.onnx.ml"
# What a linear classifier does to its scores at the end, as an operator.
TRANSFORMS = {b"NONE": "Identity", b"SOFTMAX": "Softmax", b"LOGISTIC": "Sigmoid"}
Written = tuple[list[onnx.NodeProto], dict[str, Array]]


def plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with what there is a plain way of writing for written so; the rest stays, and will be refused."""
    if not any(node.domain == LEARNING_DOMAIN for node in model.graph.node):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for node in model.graph.node:
        rule = RULES.get(node.op_type) if node.domain == LEARNING_DOMAIN else None
        nodes, constants = rule(node) if rule else ([node], {})
        changed.graph.node.extend(nodes)
        changed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return changed


def _linear_classifier(node: onnx.NodeProto) -> Written:
    """Scores x W' + b for each of at least two classes; the label, which is another output, is nobody's to read."""
    attributes = _attributes(node)
    classes = len(attributes.get("classlabels_ints", ())) or len(attributes.get("classlabels_strings", ()))
    bias = np.array(attributes.get("intercepts", [0.0] * classes), np.float32)
    transform = TRANSFORMS.get(attributes.get("post_transform", b"NONE"))
    if transform is None or classes < 2 or len(bias) != classes or len(attributes["coefficients"]) % classes:
        return [node], {}
    scores = node.output[1]
    constants = {
        f"{scores} weight": np.array(attributes["coefficients"], np.float32).reshape(classes, -1),
        f"{scores} bias": bias,
    }
    product = helper.make_node("Gemm", [node.input[0], *constants], [f"{scores} linear"], node.name, transB=1)
    return [product, helper.make_node(transform, [f"{scores} linear"], [scores], f"{node.name} scores")], constants


def _scaler(node: onnx.NodeProto) -> Written:
    attributes, output = _attributes(node), node.output[0]
    constants = {
        f"{output} offset": np.array(attributes.get("offset", [0.0]), np.float32),
        f"{output} scale": np.array(attributes.get("scale", [1.0]), np.float32),
    }
    offset, scale = constants
    shifted = helper.make_node("Sub", [node.input[0], offset], [f"{output} shifted"], node.name)
    return [shifted, helper.make_node("Mul", [f"{output} shifted", scale], [output], f"{node.name} scaled")], constants


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


RULES: dict[str, Callable[[onnx.NodeProto], Written]] = {"LinearClassifier": _linear_classifier, "Scaler": _scaler}
