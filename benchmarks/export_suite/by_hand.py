"""Files written without an exporter, node by node with onnx.helper."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

PICTURE, CLASSES = (1, 3, 12, 12), 5
Graph = tuple[Sequence[Any], dict[str, Any]]  # nodes, and the numbers they use


def filters(seed: int, *shape: int) -> np.ndarray:
    random = np.random.default_rng(seed).standard_normal(shape)
    return (random / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def classified(name: str, features: int) -> Graph:
    """The scores of a flat value."""
    from onnx.helper import make_node

    nodes = [make_node("Flatten", [name], ["flat"]), make_node("Gemm", ["flat", "W", "b"], ["scores"], transB=1)]
    return nodes, {"W": filters(1, CLASSES, features), "b": np.zeros(CLASSES, np.float32)}


def between(*middle: tuple[Any, ...], features: int, constants: dict[str, Any] | None = None) -> Graph:
    """A convolution (1, 8, 6, 6) named `c`, what is asked for from there to `m`, and scores."""
    from onnx.helper import make_node

    nodes = [make_node("Conv", ["image", "F"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1])]
    for kind, inputs, output, attributes in middle:
        nodes.append(make_node(kind, inputs.split(" "), [output], **attributes))
    last, numbers = classified("m", features)
    return [*nodes, *last], {"F": filters(0, 8, 3, 3, 3), **numbers, **(constants or {})}


def shuffled() -> Graph:
    return between(
        ("DepthToSpace", "c", "d", {"blocksize": 2}),
        ("Relu", "d", "e", {}),
        ("SpaceToDepth", "e", "f", {"blocksize": 3}),
        ("Relu", "f", "m", {}),
        features=288,
    )


def resized() -> Graph:
    return between(
        ("Relu", "c", "r", {}),
        ("Resize", "r  scales", "m", {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}),
        features=8 * 81,
        constants={"scales": np.array([1, 1, 1.5, 1.5], np.float32)},
    )


def group_normalised() -> Graph:
    return between(
        ("GroupNormalization", "c scale shift", "g", {"num_groups": 4}),
        ("Relu", "g", "m", {}),
        features=288,
        constants={"scale": np.linspace(0.5, 1.5, 8, dtype=np.float32), "shift": np.zeros(8, np.float32)},
    )


def reduced() -> Graph:
    return between(
        ("Celu", "c", "a", {"alpha": 0.7}),
        ("HardSigmoid", "a", "h", {}),
        ("Max", "a h", "x", {}),
        ("Min", "x a", "y", {}),
        ("ReduceMax", "y axes", "z", {"keepdims": 0}),
        ("LpNormalization", "z", "m", {"axis": 1, "p": 2}),
        features=8,
        constants={"axes": np.array([2, 3])},
    )


def argmax() -> Graph:
    """Scores, and behind them the label that an application asks for."""
    from onnx.helper import make_node

    nodes, numbers = between(("Relu", "c", "m", {}), features=288)
    return [*nodes, make_node("ArgMax", ["scores"], ["label"], axis=1, keepdims=0)], numbers


def rounded() -> Graph:
    """A picture that is quantised to 16 levels first, as a cheap camera does."""
    from onnx.helper import make_node

    before = [
        make_node("Mul", ["image", "levels"], ["scaled"]),
        make_node("Floor", ["scaled"], ["whole"]),
        make_node("Div", ["whole", "levels"], ["steps"]),
        make_node("Conv", ["steps", "F"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
        make_node("Relu", ["c"], ["m"]),
    ]
    last, numbers = classified("m", 288)
    return [*before, *last], {"levels": np.float32(16), "F": filters(0, 8, 3, 3, 3), **numbers}


def model(graph: Graph, opset: int, output: str = "scores", functions: Sequence[Any] = ()) -> Any:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, numbers = graph
    kind, shape = (TensorProto.INT64, [1]) if output == "label" else (TensorProto.FLOAT, [1, CLASSES])
    made = helper.make_graph(
        nodes,
        "by_hand",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, PICTURE)],
        [helper.make_tensor_value_info(output, kind, shape)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()],
    )
    domains = {"": opset} | ({"local": 1} if functions else {})
    imports = [helper.make_opsetid(domain, version) for domain, version in domains.items()]
    whole = helper.make_model(made, opset_imports=imports, functions=functions, ir_version=10)
    onnx.checker.check_model(whole)
    return whole


def with_functions() -> Any:
    """A block that is defined once and called twice."""
    from onnx import helper

    body = [
        helper.make_node("Conv", ["x", "f"], ["y"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("Add", ["x", "r"], ["out"]),
    ]
    block = helper.make_function("local", "Block", ["x", "f"], ["out"], body, [helper.make_opsetid("", 18)])
    nodes = [
        helper.make_node("Block", ["image", "F1"], ["a"], domain="local"),
        helper.make_node("Block", ["a", "F2"], ["m"], domain="local"),
    ]
    last, numbers = classified("m", 3 * 144)
    return model(
        ([*nodes, *last], {"F1": filters(2, 3, 3, 3, 3), "F2": filters(3, 3, 3, 3, 3), **numbers}),
        18,
        functions=[block],
    )


HELPER: dict[str, tuple[Callable[[], Graph], int, str]] = {
    "depth_to_space": (shuffled, 13, "scores"),
    "resize_linear": (resized, 18, "scores"),
    "group_norm": (group_normalised, 21, "scores"),
    "celu_max_l2": (reduced, 18, "scores"),
    "argmax": (argmax, 18, "label"),
    "floor": (rounded, 18, "scores"),
}


def save(build: Callable[[], Any], path: Path) -> None:
    import onnx

    onnx.save(build(), path)


def makers() -> Iterator[tuple[str, str, Callable[[Path], None]]]:
    for name, (graph, opset, output) in HELPER.items():
        yield name, "onnx.helper", partial(save, lambda g=graph, o=opset, n=output: model(g(), o, n))
    yield "functions", "onnx.helper", partial(save, with_functions)
