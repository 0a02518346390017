"""Sound linear bounds: forward through the network for every neuron, backward from the margins."""

from shakeproof.bounds.backward import Planes, planes_below
from shakeproof.bounds.domain import Boxes, Domain, Hulls
from shakeproof.bounds.forward import Enclosed, Path, cells_within, enclose

__all__ = ["Boxes", "Domain", "Enclosed", "Hulls", "Path", "Planes", "cells_within", "enclose", "planes_below"]
