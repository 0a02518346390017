"""Sound linear bounds: forward through the network for every neuron, backward from the margins."""

from shakeproof.bounds.ascent import ascend
from shakeproof.bounds.backward import Planes, gradients_at, planes_below
from shakeproof.bounds.domain import Boxes, Domain, Hulls
from shakeproof.bounds.forward import Enclosed, Path, cells_within, enclose
from shakeproof.bounds.root import Root, enclose_box, rows_within
from shakeproof.bounds.tilted import Rows, Tilted

__all__ = [
    "Boxes",
    "Domain",
    "Enclosed",
    "Hulls",
    "Path",
    "Planes",
    "Root",
    "Rows",
    "Tilted",
    "ascend",
    "cells_within",
    "enclose",
    "enclose_box",
    "gradients_at",
    "planes_below",
    "rows_within",
]
