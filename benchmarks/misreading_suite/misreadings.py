"""One deliberate misreading of a model: another model, of the same shapes, that stands for what was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import onnx
from onnx import helper, numpy_helper

Random = np.random.Generator
Change = Callable[[], None]
OTHERS = {"Relu": "Elu", "LeakyRelu": "Elu", "Elu": "LeakyRelu", "Sigmoid": "HardSigmoid", "Tanh": "Softsign"}


def misread(model: onnx.ModelProto, random: Random) -> tuple[str, onnx.ModelProto]:
    """What was misread, and the model as it was read: each kind of misreading that is possible is as likely."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    found: dict[str, list[Change]] = {}
    for kind, change in (*weights(made, random), *settings(made, random)):
        found.setdefault(kind, []).append(change)
    kind = str(random.choice(sorted(found)))
    found[kind][int(random.integers(len(found[kind])))]()
    return kind, made


def weights(model: onnx.ModelProto, random: Random) -> Iterator[tuple[str, Change]]:
    """What may be misread of the numbers in a file."""
    biases = {name for node in model.graph.node if node.op_type in ("Conv", "Gemm") for name in node.input[2:3]}
    for tensor in model.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if value.dtype != np.float32 or not value.any():
            continue

        def put(changed: np.ndarray, tensor: onnx.TensorProto = tensor) -> None:
            tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(changed, np.float32), tensor.name))

        def one_entry(value: np.ndarray = value, put: Callable[[np.ndarray], None] = put) -> None:
            changed = value.copy()
            at = tuple(int(random.integers(size)) for size in value.shape)
            changed[at] *= 1 + random.choice([-1, 1]) * 10 ** random.uniform(-4, 0)
            put(changed)

        yield "a weight", one_entry
        yield "a sign", partial(put, -value)
        if tensor.name in biases:
            yield "a bias", partial(put, 0 * value)
        if value.ndim == 4 and value.shape[2] > 1:
            yield "a kernel turned", partial(put, value.swapaxes(2, 3))
            yield "a kernel flipped", partial(put, value[:, :, ::-1, ::-1])
        if value.ndim == 1 and len(value) > 1:
            yield "an order", partial(put, value[::-1])


def settings(model: onnx.ModelProto, random: Random) -> Iterator[tuple[str, Change]]:
    """What may be misread of the operators' settings."""
    for node in model.graph.node:
        known = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}

        def put(node: onnx.NodeProto = node, **changed: object) -> Change:
            def change() -> None:
                kept = [attribute for attribute in node.attribute if attribute.name not in changed]
                del node.attribute[:]
                node.attribute.extend([*kept, *(helper.make_attribute(*own) for own in changed.items())])

            return change

        def swap(first: int, second: int, node: onnx.NodeProto = node) -> Change:
            def change() -> None:
                node.input[first], node.input[second] = node.input[second], node.input[first]

            return change

        if "epsilon" in known:
            yield "an epsilon", put(epsilon=known["epsilon"] * float(10 ** random.choice([-1.0, 1.0, 2.0])))
        if "alpha" in known:
            yield "a slope or factor", put(alpha=known["alpha"] * float(1 + 10 ** random.uniform(-4, 0)))
        if "beta" in known:
            yield "a slope or factor", put(beta=1.0)
        if node.op_type == "Conv":
            width = known["pads"][0]
            yield "padding", put(pads=[0, 0, 2 * width, 2 * width])
            yield "padding", put(pads=[width - 1, width, width + 1, width])
            if width == 2:
                yield "a dilation", put(dilations=[1, 1], pads=[1, 1, 1, 1])
        if node.op_type in ("MaxPool", "AveragePool") and "pads" in known:
            yield "padding", put(pads=[0, 1, 2, 1])
            yield "a stride or window", put(kernel_shape=[1, 3], pads=[0, 1, 0, 1])
        if "count_include_pad" in known:
            yield "padding", put(count_include_pad=1 - known["count_include_pad"])
        if node.op_type == "Pad":
            yield "padding", put(mode="edge" if known["mode"] == b"reflect" else "reflect")
        if node.op_type == "Transpose":
            yield "an axis", put(perm=[0, 1, 2, 3])
        if node.op_type == "ReduceMean":
            yield "an axis", put(axes=[5 - known["axes"][0]])
        if node.op_type == "BatchNormalization":
            yield "an order", swap(2, 3)
            yield "an order", swap(1, 2)
        if node.op_type == "Sub":
            yield "a sign", swap(0, 1)
        if node.op_type in ("Relu", "LeakyRelu", "Sigmoid", "Tanh", "HardSwish", "Elu"):
            yield "another function", partial(setattr, node, "op_type", OTHERS.get(node.op_type, "Relu"))
