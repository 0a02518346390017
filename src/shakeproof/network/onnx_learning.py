"""Classifiers of scikit-learn as skl2onnx writes them: operators of ONNX's machine-learning domain, in plain ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

LEARNING_DOMAIN = "ai.onnx.ml"
# What a linear classifier does to its scores at the end, as an operator.
TRANSFORMS = {b"NONE": "Identity", b"SOFTMAX": "Softmax", b"LOGISTIC": "Sigmoid"}
Written = tuple[list[onnx.NodeProto], dict[str, np.ndarray[Any, Any]]]


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
    given = _attributes(node)
    classes = len(given.get("classlabels_ints", ())) or len(given.get("classlabels_strings", ()))
    bias = np.array(given.get("intercepts", [0.0] * classes), np.float32)
    transform = TRANSFORMS.get(given.get("post_transform", b"NONE"))
    if transform is None or classes < 2 or len(bias) != classes or len(given["coefficients"]) % classes:
        return [node], {}
    scores = node.output[1]
    constants = {
        f"{scores} weight": np.array(given["coefficients"], np.float32).reshape(classes, -1),
        f"{scores} bias": bias,
    }
    product = helper.make_node("Gemm", [node.input[0], *constants], [f"{scores} linear"], node.name, transB=1)
    return [product, helper.make_node(transform, [f"{scores} linear"], [scores], f"{node.name} scores")], constants


def _scaler(node: onnx.NodeProto) -> Written:
    given, made = _attributes(node), node.output[0]
    constants = {
        f"{made} offset": np.array(given.get("offset", [0.0]), np.float32),
        f"{made} scale": np.array(given.get("scale", [1.0]), np.float32),
    }
    offset, scale = constants
    shifted = helper.make_node("Sub", [node.input[0], offset], [f"{made} shifted"], node.name)
    return [shifted, helper.make_node("Mul", [f"{made} shifted", scale], [made], f"{node.name} scaled")], constants


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


RULES: dict[str, Callable[[onnx.NodeProto], Written]] = {"LinearClassifier": _linear_classifier, "Scaler": _scaler}
