"""Random networks as ONNX, node by node: everyday ones, and ones made so that float32 keeps few digits of them."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Random = np.random.Generator
SIDE = 6  # of the pictures, and of most values
KINDS = ("cancelling", "steep", "rival", "sure", "jumping", "close")


class Builder:
    """An ONNX model as it grows. `x` is the current value, of `channels` pictures, or flat."""

    def __init__(self, random: Random, channels: int = 1) -> None:
        self.random, self.channels, self.side = random, channels, SIDE
        self.flat: int | None = None
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.x = "x"
        self.shape = (1, channels, SIDE, SIDE)

    def constant(self, value: object, dtype: type = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def normal(self, *shape: int, size: float = 1.0) -> str:
        return self.constant(size * self.random.normal(size=shape))

    def add(self, kind: str, *inputs: str, **settings: object) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [f"v{len(self.nodes)}"], **settings))
        return f"v{len(self.nodes) - 1}"

    def put(self, kind: str, *more: str, **settings: object) -> None:
        """An operator on the current value, which becomes the current one."""
        self.x = self.add(kind, self.x, *more, **settings)

    def conv(self) -> None:
        outputs, depth = int(self.random.integers(2, 6)), self.channels
        dilation = int(self.random.integers(1, 3))
        groups = self.channels if self.random.random() < 0.2 else 1
        outputs = outputs if groups == 1 else groups
        weight = self.normal(outputs, depth // groups, 3, 3, size=(9 * depth / groups) ** -0.5)
        settings = {"pads": [dilation] * 4, "dilations": [dilation] * 2, "group": groups}
        self.put("Conv", weight, self.normal(outputs, size=0.3), **settings)
        self.channels = outputs

    def norm(self) -> None:
        c, epsilon = self.channels, float(10 ** self.random.uniform(-5, -2))
        scale, bias = self.normal(c), self.normal(c, size=0.3)
        if self.random.random() < 0.3 and self.side > 1:
            self.put("InstanceNormalization", scale, bias, epsilon=epsilon)
            return
        variance = self.constant(10 ** self.random.uniform(-3, 0.5, c))
        self.put("BatchNormalization", scale, bias, self.normal(c, size=0.3), variance, epsilon=epsilon)

    def bend(self) -> None:
        kind = self.random.choice(["Relu", "LeakyRelu", "Elu", "Sigmoid", "Tanh", "Clip", "PRelu", "Abs", "HardSwish"])
        if kind in ("LeakyRelu", "Elu"):
            self.put(kind, alpha=float(self.random.uniform(0.01, 1)))
        elif kind == "Clip":
            self.put(kind, self.constant(-self.random.random()), self.constant(self.random.random()))
        elif kind == "PRelu":
            shape = (self.flat,) if self.flat else (self.channels, 1, 1)
            self.put(kind, self.constant(self.random.uniform(0, 1, shape)))
        else:
            self.put(kind)

    def pool(self) -> None:
        if self.side < 3:
            return
        kind = self.random.choice(["MaxPool", "AveragePool"])
        settings = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
        if kind == "AveragePool":
            settings["count_include_pad"] = int(self.random.integers(2))
        self.put(kind, **settings)

    def branch(self) -> None:
        """A residual addition, a product with a gate, or both side by side."""
        before, kind = self.x, self.random.choice(["Add", "Mul", "Concat"])
        if kind == "Concat" and self.channels > 4:
            return
        self.bend()
        self.x = self.add(kind, before, self.x, **({"axis": 1} if kind == "Concat" else {}))
        self.channels *= 2 if kind == "Concat" else 1

    def turn(self) -> None:
        pads = self.constant([0, 0, 1, 1, 0, 0, 1, 1], np.int64)
        if self.random.random() < 0.5:
            self.put("Transpose", perm=[0, 1, 3, 2])
        else:
            mode = str(self.random.choice(["reflect", "edge", "constant"]))
            self.put("Pad", pads, *([self.constant(self.random.random())] if mode == "constant" else []), mode=mode)
            self.put("AveragePool", kernel_shape=[3, 3])

    def flatten(self) -> None:
        if self.random.random() < 0.3:
            self.put("ReduceMean", axes=[int(self.random.integers(2, 4))], keepdims=0)
            self.flat = self.channels * SIDE
        elif self.random.random() < 0.3:
            self.put("GlobalAveragePool")
            self.flat = self.channels
        else:
            self.flat = self.channels * SIDE * SIDE
        self.put("Flatten")

    def dense(self, outputs: int, size: float = 1.0) -> None:
        assert self.flat is not None
        weight = self.random.normal(size=(self.flat, outputs)) * size / np.sqrt(self.flat)
        if self.random.random() < 0.3:
            self.put("MatMul", self.constant(weight))
            self.put("Add", self.normal(outputs, size=0.3))
        else:
            turned = bool(self.random.integers(2))
            scales = {"alpha": float(self.random.uniform(0.5, 2)), "beta": float(self.random.uniform(0.5, 2))}
            given = self.constant(weight.T if turned else weight)
            self.put("Gemm", given, self.normal(outputs, size=0.3), transB=int(turned), **scales)
        self.flat = outputs

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info(self.x, TensorProto.FLOAT, None)],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)])
        made.ir_version = 8
        return made


def body(b: Builder, classes: int) -> None:
    """Layers on pictures, and dense ones: as many as come out of it."""
    for _ in range(int(b.random.integers(0, 5))):
        layer = b.random.choice(["conv", "norm", "bend", "pool", "branch", "turn"], p=[0.35, 0.2, 0.2, 0.1, 0.1, 0.05])
        getattr(b, layer)()
        if layer == "conv":
            b.bend()
    b.flatten()
    for _ in range(int(b.random.integers(0, 4))):
        b.dense(int(b.random.integers(4, 24)))
        b.bend()
    b.dense(classes, size=3.0)


def everyday(seed: int) -> onnx.ModelProto:
    """A network of up to about a dozen layers, with a softmax now and then."""
    random = np.random.default_rng([1, seed])
    b = Builder(random, int(random.choice([1, 3])))
    body(b, int(random.integers(2, 6)))
    if random.random() < 0.2:
        b.put(str(random.choice(["Softmax", "LogSoftmax"])), axis=1)
    return b.model()


def built(seed: int) -> onnx.ModelProto:
    """A network of which float32 keeps few digits, or whose margins are small."""
    random = np.random.default_rng([2, seed])
    kind = KINDS[seed % len(KINDS)]
    b = Builder(random)
    classes = int(random.integers(2, 5))
    if kind == "jumping":
        b.put("Flatten")
        b.flat = SIDE * SIDE
        for _ in range(2):
            b.dense(int(random.integers(8, 24)))
            b.put("Sign")
        b.dense(classes, size=3.0)
        return b.model()
    body(b, classes)
    if kind == "cancelling":  # y is 1 + y / 2^bits for a while
        bits = float(random.integers(6, 24))
        b.put("Mul", b.constant(2.0**-bits))
        b.put("Add", b.constant(1.0))
        b.put("Relu" if random.random() < 0.7 else "Identity")
        b.put("Sub", b.constant(1.0))
        b.put("Mul", b.constant(2.0**bits))
    elif kind == "steep":  # large weights that cancel, layer after layer
        for _ in range(int(random.integers(1, 4))):
            large = 10 ** random.uniform(1, 4)
            turned = np.linalg.qr(random.normal(size=(classes, classes)))[0]
            bent = turned @ np.diag(np.linspace(1, large, classes)) @ np.linalg.qr(random.normal(size=turned.shape))[0]
            b.put("MatMul", b.constant(bent))
            b.put("LeakyRelu", alpha=0.9)
            b.put("MatMul", b.constant(np.linalg.inv(bent)))
    elif kind == "rival":  # a class far below all others
        below = b.add("Add", b.add("Mul", b.x, b.constant(0.0)), b.constant(-(10 ** random.uniform(4, 12))))
        b.put("Concat", below, axis=1)
    elif kind == "sure":  # a softmax of scores far apart
        b.put("Mul", b.constant(random.uniform(5, 30)))
        b.put("Softmax", axis=1)
    else:  # scores that hardly differ
        b.put("Mul", b.constant(10 ** random.uniform(-8, -3)))
        b.put("Add", b.constant(random.uniform(-1, 1)))
    return b.model()
