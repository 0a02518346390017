"""Sound linear bounds: forward through the network for every neuron, backward (CROWN) from what must hold."""

from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Parts, ascend
from shakeproof.bounds.crown import Planes, leads_below, lowest_leads, planes_below, pulled_back, usual_shortfall
from shakeproof.bounds.forward import Boxes, Domain, Enclosed, Enclosure, cells_within, enclose, step
from shakeproof.bounds.intermediate import BoxBounds, enclose_box, rows_within

__all__ = [
    "AlphaBetaCrown",
    "BoxBounds",
    "Boxes",
    "Domain",
    "Enclosed",
    "Enclosure",
    "Parts",
    "Planes",
    "ascend",
    "cells_within",
    "enclose",
    "enclose_box",
    "leads_below",
    "lowest_leads",
    "planes_below",
    "pulled_back",
    "rows_within",
    "step",
    "usual_shortfall",
]
