"""Arithmetic on floating-point constants: computed exactly, or refused.

A proof is about the network as a function of real numbers, so its constants must be the numbers that the file states. A
sum, product or quotient of them must be a float64 number. Error-free transformations show whether it is.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from shakeproof.checker.budget import Array, Unknown, require

SMALLEST, LARGEST = 2.0**-400, 2.0**400  # between these, nothing in a transformation underflows or overflows


def total(x: Array, y: Array, sign: int = 1) -> Array:
    """Knuth's TwoSum: the sum, and what was lost (Ogita, Rump, Oishi, Accurate Sum and Dot Product, 2005)."""
    y = sign * y
    result = x + y
    part = result - x
    return _exact(result, (x - (result - part)) + (y - part), x, y)


def product(x: Array, y: Array) -> Array:
    return _exact(x * y, _lost(x, y), x, y)


def quotient(x: Array, y: Array) -> Array:
    """A quotient is exact if its product with the divisor is the dividend, and exact."""
    require((y != 0).all(), "a constant divided by 0", Unknown)
    result = np.asarray(x / y)
    return _exact(result, np.abs(_lost(result, y)) + np.abs(result * y - x), x, y)


def _lost(x: Array, y: Array) -> Array:
    """What the product of two numbers loses by rounding: Dekker's TwoProduct, with Veltkamp's halves."""
    (x_high, x_low), (y_high, y_low) = ((high, a - high) for a in (x, y) for high in (_high(a),))
    return np.asarray(x_low * y_low - (((x * y - x_high * y_high) - x_low * y_high) - x_high * y_low))


def _high(x: Array) -> Array:
    """The upper 26 bits."""
    return np.asarray(134217729.0 * x - (134217729.0 * x - x))


def _exact(result: Any, lost: Array, *operands: Array) -> Array:
    sizes = [np.abs(array[array != 0]) for array in (np.asarray(result), *operands)]
    inside = all(((size > SMALLEST) & (size < LARGEST)).all() for size in sizes)
    require(inside and (lost == 0).all(), "a constant that the file computes, and that float64 would round", Unknown)
    return np.asarray(result)


# What there is a rule for, if all inputs are floating-point constants; runtimes calculate in float32 in all but Neg.
RULES: Mapping[str, Callable[..., Array]] = {
    "Add": total,
    "Div": quotient,
    "Mul": product,
    "Neg": lambda x: -x,
    "Sub": partial(total, sign=-1),
    "Sum": total,
}
