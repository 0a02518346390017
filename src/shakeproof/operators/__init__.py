"""What a network is made of. An operator says what it computes, how it is enclosed, and if it bends, where.

Values carry a leading row axis: a tensor of shape (rows, *shape) holds one value of the network per row. Pictures
inside the network are stored with channels last, so that a convolution is one large matrix product.
"""

from shakeproof.operators.activation import Abs, Bending, Clip, LeakyRelu, Relu
from shakeproof.operators.affine import Combine, Linear, Mean, Scale
from shakeproof.operators.base import (
    ABOVE,
    CONSTANT_ROUNDINGS,
    UNIT,
    Affine,
    Breaks,
    Cells,
    Entries,
    Itself,
    Operator,
    PiecewiseLinear,
    Range,
    Relaxation,
)
from shakeproof.operators.conv import AveragePool, Conv, Unrolled, unrolled
from shakeproof.operators.elementwise import Between, Elementwise, TwoLines
from shakeproof.operators.jump import Ceil, Floor, Jumping, Positive, Round, Sign
from shakeproof.operators.kinked import Elu, HardSwish, Kinked
from shakeproof.operators.pool import MaxPool, envelope_breaks
from shakeproof.operators.product import MatMul, Multiply
from shakeproof.operators.resample import Resample
from shakeproof.operators.shape import Concat, Pad, Reshape, Transpose
from shakeproof.operators.smooth import (
    Erf,
    Exp,
    Gelu,
    GeluTanh,
    Log,
    Mish,
    Power,
    Sigmoid,
    Silu,
    Smooth,
    Softplus,
    Tanh,
)
from shakeproof.operators.stretch import operator_norms
from shakeproof.operators.tangent import Normalise, Softmax
from shakeproof.operators.window import BLOCK_BYTES, Pair, SlidingWindow

__all__ = [
    "ABOVE",
    "BLOCK_BYTES",
    "CONSTANT_ROUNDINGS",
    "UNIT",
    "Abs",
    "Affine",
    "AveragePool",
    "Bending",
    "Between",
    "Breaks",
    "Ceil",
    "Cells",
    "Clip",
    "Combine",
    "Concat",
    "Conv",
    "Elementwise",
    "Elu",
    "Entries",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GeluTanh",
    "HardSwish",
    "Itself",
    "Jumping",
    "Kinked",
    "LeakyRelu",
    "Linear",
    "Log",
    "MatMul",
    "MaxPool",
    "Mean",
    "Mish",
    "Multiply",
    "Normalise",
    "Operator",
    "Pad",
    "Pair",
    "PiecewiseLinear",
    "Positive",
    "Power",
    "Range",
    "Relaxation",
    "Relu",
    "Resample",
    "Reshape",
    "Round",
    "Scale",
    "Sigmoid",
    "Sign",
    "Silu",
    "SlidingWindow",
    "Smooth",
    "Softmax",
    "Softplus",
    "Tanh",
    "Transpose",
    "TwoLines",
    "Unrolled",
    "envelope_breaks",
    "operator_norms",
    "unrolled",
]
