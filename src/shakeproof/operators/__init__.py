"""What a network is made of. An operator says what it computes and, if piecewise linear, where it bends.

Values carry a leading row axis: a tensor of shape (rows, *shape) holds one value of the network per row. Pictures
inside the network are stored with channels last, so that a convolution is one large matrix product.
"""

from shakeproof.operators.activation import Abs, Clip, LeakyRelu, Relu
from shakeproof.operators.affine import Combine, Linear, Mean, Scale
from shakeproof.operators.base import Affine, Breaks, Operator, PiecewiseLinear
from shakeproof.operators.conv import AveragePool, Conv
from shakeproof.operators.pool import MaxPool
from shakeproof.operators.shape import Concat, Pad, Reshape, Transpose

__all__ = [
    "Abs",
    "Affine",
    "AveragePool",
    "Breaks",
    "Clip",
    "Combine",
    "Concat",
    "Conv",
    "LeakyRelu",
    "Linear",
    "MaxPool",
    "Mean",
    "Operator",
    "Pad",
    "PiecewiseLinear",
    "Relu",
    "Reshape",
    "Scale",
    "Transpose",
]
