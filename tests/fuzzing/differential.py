"""Does the checker read a model as onnxruntime does? Small networks with something changed, asked of both.

Weights and pixels are small whole numbers and quarters, so that float32 computes them exactly. The checker may refuse.
Where it answers, its enclosure for float32 arithmetic, without any slack, must contain what onnxruntime computes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from fuzzing.changes import Random
from fuzzing.wire_changes import with_a_field_written_otherwise
from shakeproof import checker
from shakeproof.checker import budget

SIDE = 6  # of pictures: with 4, two channels could be rows
EFFORT = 0.05  # of what a check may cost
INTEGERS = (np.int8, np.int32, np.int64)
SHARP = 0.05  # a narrower enclosure shows a weight that is read otherwise: scores are multiples of 1 / 16


class Made:
    """A network that grows operator by operator; each value is an array whose shape is known."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.name, self.shape = "x", [1, int(random.integers(1, 3)), SIDE, SIDE]
        self.input_shape: list[Any] = ["n", self.shape[1], "h", "w"] if random.random() < 0.3 else [*self.shape]
        self.sizes = self.shape[1:]
        self.stated: tuple[str, list[int]] | None = None

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.random.integers(-3, 4, shape))

    def whole(self, *values: int) -> str:
        """Whole numbers, as they are, or computed from others, in any of several types, as exporters do."""
        way, wanted = int(self.random.integers(7)), np.array(values, np.int64)
        kind = INTEGERS[self.random.integers(3)] if np.abs(wanted).max(initial=0) < 100 else np.int64
        if way < 2:
            return self.constant(wanted, np.int64)
        part = self.random.integers(-20, 20, wanted.shape)
        if way == 2:
            made = self.add("Add", self.constant(wanted - part, kind), self.constant(part, kind))
        elif way == 3:
            made = self.add("Sub", self.constant(part, kind), self.constant(part - wanted, kind))
        elif way == 4:
            made = self.add("Neg", self.constant(-wanted, kind))
        elif way == 5:
            made = self.add("Mul", self.constant(-wanted, kind), self.constant(-1, kind))
        else:
            rows = self.constant(np.stack([part, wanted]), kind)
            made = self.add("Gather", rows, self.constant(1, np.int64), axis=0)
        return self.add("Cast", made, to=TensorProto.INT64)

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [*inputs], [name], **attributes))
        return name

    def then(self, kind: str, *inputs: str, shape: Sequence[int] | None = None, **attributes: Any) -> None:
        self.name = self.add(kind, self.name, *inputs, **attributes)
        self.shape = [*(shape or self.shape)]

    def proto(self) -> onnx.ModelProto:
        """Ends with scores of three or four classes."""
        entries, classes = int(np.prod(self.shape)), int(self.random.integers(3, 5))
        self.then("Flatten", shape=[1, entries])
        transposed = int(self.random.integers(2))
        self.then("Gemm", self.weight(*((classes, entries) if transposed else (entries, classes))), transB=transposed)
        self.nodes[-1].output[0] = "y"
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.input_shape)]
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        tensors = [numpy_helper.from_array(value, name) for name, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, tensors)
        if self.stated is not None:
            graph.value_info.append(helper.make_tensor_value_info(self.stated[0], TensorProto.FLOAT, self.stated[1]))
        opset = int(self.random.choice([14, 17]))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def convolved(made: Made) -> None:
    outputs, channels = int(made.random.integers(1, 4)), made.shape[1]
    made.then("Conv", made.weight(outputs, channels, 3, 3), made.weight(outputs), pads=[1] * 4,
              shape=[1, outputs, *made.shape[2:]])  # fmt: skip


def bent(made: Made) -> None:
    kind = str(made.random.choice(["Relu", "Abs", "Neg", "Identity", "PRelu", "Clip", "LeakyRelu"]))
    more = [made.weight(made.shape[1], 1, 1)] if kind == "PRelu" else []
    more = [made.constant(-2), made.constant(3)] if kind == "Clip" else more
    made.then(kind, *more, **({"alpha": 0.25} if kind == "LeakyRelu" else {}))


def pooled(made: Made) -> None:
    if made.shape[2:] == [SIDE, SIDE]:
        kind = str(made.random.choice(["MaxPool", "AveragePool"]))
        made.then(kind, kernel_shape=[2, 2], strides=[2, 2], shape=[*made.shape[:2], SIDE // 2, SIDE // 2])


def scaled(made: Made) -> None:
    kind = str(made.random.choice(["Add", "Sub", "Mul"]))
    made.then(kind, made.weight(made.shape[1], 1, 1))


def turned(made: Made) -> None:
    made.then("Transpose", perm=[0, 1, 3, 2])


def sliced(made: Made) -> None:
    if made.shape[3] > 1:
        width = made.shape[3]
        if made.random.random() < 0.5:
            ends = (made.whole(1), made.whole(width), made.whole(3), made.whole(1))
        else:
            ends = (made.whole(width - 1), made.whole(-width), made.whole(3), made.whole(-1))
        made.then("Slice", *ends, shape=[*made.shape[:3], width - 1])


def gathered(made: Made) -> None:
    axis = int(made.random.integers(1, 4))
    places = made.random.integers(-made.shape[axis], made.shape[axis], int(made.random.integers(1, 4)))
    made.then("Gather", made.whole(*places.tolist()), axis=axis,
              shape=[*made.shape[:axis], len(places), *made.shape[axis + 1 :]])  # fmt: skip


def reshaped(made: Made) -> None:
    """By a shape that is computed: 0 is the own size, -1 what is left."""
    one, channels, height, width = made.shape
    asked = made.random.choice(["plain", "zero", "shape"])
    if asked == "plain":
        target = made.whole(one, channels, width, -1)
        made.then("Reshape", target, shape=[one, channels, width, height])
    elif asked == "zero":
        made.then("Reshape", made.whole(0, -1, 0, width))
    else:
        sizes = made.add("Shape", made.name)
        turned = made.add("Gather", sizes, made.whole(0, 1, 3, 2), axis=0)
        made.then("Reshape", turned, shape=[one, channels, width, height])


def padded(made: Made) -> None:
    if max(made.shape) < 10:
        made.then("Pad", made.whole(0, 0, 1, 0, 0, 0, 0, 1),
                  shape=[*made.shape[:2], made.shape[2] + 1, made.shape[3] + 1])  # fmt: skip


def parted(made: Made) -> None:
    """In two, and together again the other way round."""
    if made.shape[2] > 1:
        name = f"v{len(made.nodes)}"
        sizes = made.whole(1, made.shape[2] - 1)
        made.nodes.append(helper.make_node("Split", [made.name, sizes], [f"{name}a", f"{name}b"], axis=2))
        made.name = made.add("Concat", f"{name}b", f"{name}a", axis=2)


def emptied(made: Made) -> None:
    """The sizes of an array without entries, as whole numbers that something depends on."""
    shape = made.whole(0, 0) if made.random.random() < 0.5 else made.whole(0, 3)
    nothing = made.constant(np.zeros((2, 0)))
    told = int(made.random.integers(2))
    sizes = made.add("Shape", made.add("Reshape", nothing, shape, allowzero=told))
    place = made.add("Gather", sizes, made.constant([0], np.int64), axis=0)
    made.then("Gather", place, axis=3, shape=[*made.shape[:3], 1])


def constant_filled(made: Made) -> None:
    filled = made.add("ConstantOfShape", made.whole(1, 1, made.shape[3]),
                      value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0]))  # fmt: skip
    made.then("Mul", made.add("Expand", filled, made.whole(made.shape[1], 1, 1)))


def told(made: Made) -> None:
    """Something depends on the shape of a value that is hard to infer, and that may be stated."""
    one, channels, height, width = made.shape
    turned = made.add("Gather", made.add("Shape", made.name), made.constant([0, 1, 3, 2], np.int64), axis=0)
    beside = made.add("Reshape", made.name, turned)
    side = made.add("Gather", made.add("Shape", beside), made.constant([3], np.int64), axis=0)
    made.stated = (beside, [one, channels, width, int(made.random.choice([height, height + 1]))])
    made.then("Mul", made.add("Cast", side, to=TensorProto.FLOAT))


def wrapped(made: Made) -> None:
    """A factor computed from whole numbers, whose result may not fit into their type."""
    if made.random.random() < 0.5:
        factor = made.add("Neg", made.constant([made.random.choice([-128, -3, 5])], np.int8))
    else:
        factor = made.add("Add", made.constant([2**31 - 1], np.int32), made.constant([-(2**31) + 3], np.int32))
    made.then("Mul", made.add("Cast", factor, to=TensorProto.FLOAT))


def summed(made: Made) -> None:
    made.then("ReduceMean", axes=[3], keepdims=1, shape=[*made.shape[:3], 1])


STEPS: tuple[Callable[[Made], None], ...] = (
    convolved, bent, bent, pooled, scaled, turned, sliced, gathered, reshaped, padded, parted, emptied, constant_filled,
    summed, told, wrapped,
)  # fmt: skip


def network(random: Random) -> tuple[onnx.ModelProto, list[int]]:
    """A network, and the sizes (channels, height, width) of its pictures."""
    made = Made(random)
    for _ in range(int(random.integers(0, 4))):
        STEPS[random.integers(len(STEPS))](made)
    return made.proto(), made.sizes


# -- what is changed ---------------------------------------------------------------------------------------------------

# Attributes that operators have, and values that they may take.
ATTRIBUTES = {
    "allowzero": (0, 1, 2), "transA": (0, 1), "transB": (0, 1, 2), "alpha": (1.0, 0.5), "beta": (1.0, 2.0),
    "axis": (0, 1, 2, 3, -1, -4), "keepdims": (0, 1, 2), "perm": ([0, 1, 2, 3], [0, 2, 1, 3], [3, 2, 1, 0]),
    "pads": ([0] * 4, [1] * 4, [0, 1, 0, 1], [2, 0, 0, 0]), "strides": ([1, 1], [2, 2], [1, 3]),
    "dilations": ([1, 1], [2, 1]), "auto_pad": ("NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"), "group": (1, 2),
    "ceil_mode": (0, 1, 2), "count_include_pad": (0, 1), "storage_order": (0, 1),
    "mode": ("constant", "edge", "reflect"),
    "to": (1, 6, 7, 3, 11, 10, 9, 2), "kernel_shape": ([2, 2], [1, 1], [3, 3], [3, 2]), "start": (0, 1), "end": (2, -1),
    "axes": ([1], [2, 3], [3, 3], []), "noop_with_empty_axes": (0, 1), "num_outputs": (2, 3), "training_mode": (0, 1),
}  # fmt: skip
KINDS = ("Add", "Sub", "Mul", "Div", "Relu", "Neg", "Abs", "Identity", "Transpose", "Flatten", "MatMul", "Gemm", "Sum",
         "MaxPool", "AveragePool", "Softmax", "ReduceSum", "ReduceMean", "Gather", "Reshape", "Squeeze", "Unsqueeze",
         "Dropout", "Shape", "Cast", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "Expand")  # fmt: skip


def attribute_given(proto: onnx.ModelProto, random: Random) -> None:
    node = proto.graph.node[random.integers(len(proto.graph.node))]
    name = str(random.choice([*ATTRIBUTES]))
    known = [given.name for given in node.attribute if given.name in ATTRIBUTES]
    name = str(random.choice(known)) if known and random.random() < 0.7 else name
    kept = [given for given in node.attribute if given.name != name]
    values = ATTRIBUTES[name]
    del node.attribute[:]
    made = helper.make_attribute(name, values[random.integers(len(values))], attr_type=_attribute_type(values[0]))
    node.attribute.extend([*kept, made])


def _attribute_type(value: Any) -> int:
    kinds = {int: onnx.AttributeProto.INT, float: onnx.AttributeProto.FLOAT, str: onnx.AttributeProto.STRING}
    return kinds.get(type(value), onnx.AttributeProto.INTS)


def attribute_dropped(proto: onnx.ModelProto, random: Random) -> None:
    nodes = [node for node in proto.graph.node if node.attribute]
    if nodes:
        node = nodes[random.integers(len(nodes))]
        del node.attribute[int(random.integers(len(node.attribute)))]


def kind_changed(proto: onnx.ModelProto, random: Random) -> None:
    proto.graph.node[random.integers(len(proto.graph.node))].op_type = str(random.choice(KINDS))


def name_changed(proto: onnx.ModelProto, random: Random) -> None:
    names = ["", "x", "y", *(t.name for t in proto.graph.initializer), *(o for n in proto.graph.node for o in n.output)]
    node = proto.graph.node[random.integers(len(proto.graph.node))]
    side = node.input if random.random() < 0.8 or not node.output else node.output
    if side:
        side[int(random.integers(len(side)))] = str(random.choice(names))
    if random.random() < 0.2:
        node.input.append(str(random.choice(names)))


def tensor_of_another_type(proto: onnx.ModelProto, random: Random) -> None:
    """The same numbers, if they fit, or others at the ends of what fits."""
    tensor, value = _tensor(proto, random)
    if tensor is not None:
        kind = [np.int8, np.uint8, np.int16, np.int32, np.int64, np.float16, np.float32, np.float64, np.bool_][
            random.integers(9)
        ]
        with np.errstate(all="ignore"):
            tensor.CopyFrom(numpy_helper.from_array(value.astype(kind), tensor.name))


def tensor_with_ends(proto: onnx.ModelProto, random: Random) -> None:
    """One entry of a constant becomes the largest, the least, or something near 0."""
    tensor, value = _tensor(proto, random)
    if tensor is not None and value.size and value.dtype.kind == "i":
        ends, made = np.iinfo(value.dtype), value.copy()
        made.flat[random.integers(value.size)] = random.choice([ends.max, ends.min, ends.min + 1, 0, -1, 1, 2])
        tensor.CopyFrom(numpy_helper.from_array(made, tensor.name))


def tensor_of_another_shape(proto: onnx.ModelProto, random: Random) -> None:
    """Empty, with an axis of 1, turned, flat, a scalar, cut, twice."""
    tensor, value = _tensor(proto, random)
    if tensor is not None:
        made = [
            value[None], value[..., None], value.T, value.ravel(), value[:0] if value.ndim else value,
            value[:1] if value.ndim else value, np.zeros((0, 2), value.dtype), value[::-1] if value.ndim else value,
            value.ravel()[:1].reshape(()) if value.size else value, np.concatenate([value.ravel()] * 2),
        ][random.integers(10)]  # fmt: skip
        tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(made), tensor.name))


def tensor_in_typed_fields(proto: onnx.ModelProto, random: Random) -> None:
    """Entries as protobuf's numbers, in the field of the type, or beside raw bytes, or in another field."""
    tensor, value = _tensor(proto, random)
    if tensor is None:
        return
    fields = {"f": "float_data", "i": "int64_data" if value.dtype == np.int64 else "int32_data"}
    field = fields.get(value.dtype.kind, "int32_data") if random.random() < 0.8 else "float_data"
    if random.random() < 0.7:
        tensor.ClearField("raw_data")
    entries = value.ravel()[::-1] if tensor.HasField("raw_data") else value.ravel()
    getattr(tensor, field).extend(entries.astype(float if field == "float_data" else int).tolist())


def _tensor(proto: onnx.ModelProto, random: Random) -> tuple[Any, Any]:
    tensors = [own for own in proto.graph.initializer if own.HasField("raw_data") and not own.data_location]
    tensor = tensors[random.integers(len(tensors))] if tensors else None
    try:
        return tensor, None if tensor is None else numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return None, None


def node_moved(proto: onnx.ModelProto, random: Random) -> None:
    nodes = list(proto.graph.node)
    nodes.insert(int(random.integers(len(nodes))), nodes.pop(int(random.integers(len(nodes)))))
    copies = [helper.make_node("Identity", [], []) for _ in nodes]
    for copy, node in zip(copies, nodes, strict=True):
        copy.CopyFrom(node)
    del proto.graph.node[:]
    proto.graph.node.extend(copies)


def shape_stated(proto: onnx.ModelProto, random: Random) -> None:
    """A shape of a value that may be wrong."""
    names = [name for node in proto.graph.node for name in node.output] + [t.name for t in proto.graph.initializer]
    shape = [None if random.random() < 0.3 else int(random.choice([0, 1, 2, 6, 36])) for _ in range(random.integers(5))]
    kind = int(random.choice([TensorProto.FLOAT, TensorProto.INT64]))
    made = helper.make_tensor_value_info(str(random.choice(names)), kind, shape)
    held = [proto.graph.value_info, proto.graph.output, proto.graph.input][random.integers(3)]
    held.append(made)


def versions_changed(proto: onnx.ModelProto, random: Random) -> None:
    if random.random() < 0.5:
        proto.opset_import[0].version = int(random.integers(6, 23))
    else:
        domain = str(random.choice(["", "ai.onnx", "ai.onnx.ml", "com.microsoft"]))
        proto.opset_import.append(helper.make_opsetid(domain, int(random.integers(1, 20))))


def more_in_it(proto: onnx.ModelProto, random: Random) -> None:
    """Notes, functions, segments, weights elsewhere."""
    way = int(random.integers(6))
    if way == 0:
        proto.doc_string, proto.graph.doc_string = "a note", "another"
    elif way == 1:
        node = helper.make_node("Neg", ["a"], ["b"])
        kind = str(random.choice([own.op_type for own in proto.graph.node]))
        proto.functions.append(helper.make_function("", kind, ["a"], ["b"], [node], proto.opset_import))
    elif way == 2 and proto.graph.initializer:
        proto.graph.initializer[0].segment.end = 1
    elif way == 3 and proto.graph.initializer:
        proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    elif way == 4:
        entry = proto.metadata_props.add()
        entry.key, entry.value = "a", "b"
    else:
        proto.graph.node[random.integers(len(proto.graph.node))].domain = str(random.choice(["", "ai.onnx", "other"]))


CHANGES: tuple[Callable[[onnx.ModelProto, Random], None], ...] = (
    attribute_given, attribute_given, attribute_dropped, kind_changed, name_changed, tensor_of_another_type,
    tensor_with_ends, tensor_of_another_shape, tensor_in_typed_fields, node_moved, shape_stated, versions_changed,
    more_in_it,
)  # fmt: skip


def model_and_pixels(seed: int) -> tuple[bytes, np.ndarray]:
    """A network with up to three changes, and a picture for it: the same for the same seed."""
    random = np.random.default_rng([seed, 24])
    proto, sizes = network(random)
    in_bytes = random.random() < 0.5
    for _ in range(int(random.integers(0, 2 if in_bytes else 3))):
        CHANGES[random.integers(len(CHANGES))](proto, random)
    data = proto.SerializeToString()
    if in_bytes:
        data = with_a_field_written_otherwise(data, random)
    return data, random.integers(-8, 9, sizes) / 4.0


# -- what both make of it ----------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What became of a model: refused, unsure (an enclosure without ends), or answered; and onnxruntime's part."""

    checker: str
    runtime: str = ""
    contradiction: str = ""


def enclosed(data: bytes, pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Between what the checker says that each score lies, in float32."""
    said = {
        "strength": [1.0], "mean": [], "std": [], "perturbation": "identity", "kernels": [[["1"]]],
        "arithmetic": "float32", "channels_last": False,
    }  # fmt: skip
    with budget.limited(0, len(data), EFFORT), np.errstate(all="ignore"):
        asked = checker.Question(said, pixels, data)
        scores = asked.scores(np.zeros((1, 1)), np.zeros((1, 1)))
    reach = np.abs(scores.lines[1:, 0]).sum(0) + scores.radius[0]
    return scores.lines[0, 0] - reach, scores.lines[0, 0] + reach


def runtime_scores(data: bytes, pixels: np.ndarray, optimised: bool) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_ENABLE_ALL if optimised else levels.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    taken = session.get_inputs()[0]
    kind = {"tensor(double)": np.float64, "tensor(float16)": np.float16}.get(taken.type, np.float32)
    shape = [size if isinstance(size, int) and size > 0 else 0 for size in taken.shape]
    given = pixels.reshape(shape) if np.prod(shape) == pixels.size else pixels[None]
    return np.asarray(session.run(None, {taken.name: given.astype(kind)})[0], np.float64).ravel()


def answer(data: bytes, pixels: np.ndarray) -> Answer:
    try:
        below, above = enclosed(data, pixels)
    except (checker.Refused, *checker.MALFORMED):
        return Answer("refused")
    if not np.isfinite(above - below).all():
        return Answer("unsure")
    found = "answered" if (above - below).max() < SHARP else "answered widely"
    try:
        optimised = hashlib.sha256(data).digest()[0] % 4 > 0
        scores = runtime_scores(data, pixels, optimised)
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        return Answer(found, f"onnxruntime refused ({' '.join(str(error).split())[:120]})")
    same = scores.shape == below.shape and ((below <= scores) & (scores <= above)).all()
    return Answer(found, "ran", "" if same else f"[{below}, {above}] does not hold {scores}")


def softmax_at_the_end(data: bytes) -> bool:
    """The checker leaves it out: it keeps the order of scores, not the scores."""
    return b"Softmax" in data


def answers(seeds: Iterable[int]) -> list[tuple[int, Answer]]:
    found = []
    for seed in seeds:
        data, pixels = model_and_pixels(seed)
        found.append((seed, Answer("refused") if softmax_at_the_end(data) else answer(data, pixels)))
    return found
