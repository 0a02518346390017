"""ONNX operators that divide by a computed size."""

from __future__ import annotations

import onnx

from shakeproof.network import normalise
from shakeproof.network.build import Unsupported, Value
from shakeproof.network.onnx_call import FLOATS, Call, single, tensor


def batch_norm(call: Call) -> Value:
    if call.attributes.get("training_mode") or call.outputs > 1:  # before opset 14, more outputs meant training
        raise Unsupported("training mode")
    if not call.attributes.get("spatial", 1):
        raise Unsupported("a mean and variance for each pixel")
    weight, bias, mean, variance = (tensor(call.constant(i)) for i in range(1, 5))
    epsilon = call.attributes.get("epsilon", single(1e-5))
    return normalise.batch_norm(call.builder, call.value(), weight, bias, mean, variance, epsilon)


def layer_norm(call: Call) -> Value:
    x = call.value()
    _check_stash(call)
    axes = range(x.axis(call.attributes.get("axis", -1)), len(x.shape))
    bias = call.optional(2)
    return normalise.layer_norm(
        call.builder,
        x,
        axes,
        call.attributes.get("epsilon", single(1e-5)),
        tensor(call.constant(1)),
        0.0 if bias is None else tensor(bias),
    )


def group_norm(call: Call) -> Value:
    """Before opset 21, weight and bias were by group."""
    _check_stash(call)
    x, groups = call.value(), call.attributes["num_groups"]
    weight, bias = (tensor(call.constant(i)) for i in (1, 2))
    if call.opset < 21:
        weight, bias = (constant.repeat_interleave(x.shape[1] // groups) for constant in (weight, bias))
    return normalise.group_norm(call.builder, x, groups, call.attributes.get("epsilon", single(1e-5)), weight, bias)


def instance_norm(call: Call) -> Value:
    x = call.value()
    weight, bias = (tensor(call.constant(i)) for i in (1, 2))
    epsilon = call.attributes.get("epsilon", single(1e-5))
    return normalise.group_norm(call.builder, x, x.shape[1], epsilon, weight, bias)


def lp_norm(call: Call) -> Value:
    axis, order = call.attributes.get("axis", -1), call.attributes.get("p", 2)
    return normalise.divided_by_norm(call.builder, call.value(), axis, float(order))


def _check_stash(call: Call) -> None:
    if call.attributes.get("stash_type", onnx.TensorProto.FLOAT) not in FLOATS:
        raise Unsupported("mean and variance in 16 bits, which rounds them")
