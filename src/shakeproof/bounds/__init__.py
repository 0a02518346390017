"""Sound linear bounds: forward through the network for every neuron, backward (CROWN) from what must hold."""

from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Parts
from shakeproof.bounds.crown import Planes, gradients_at, planes_below, pulled_back
from shakeproof.bounds.domain import Boxes, Domain, Hulls
from shakeproof.bounds.forward import Enclosed, Enclosure, cells_within, enclose, step
from shakeproof.bounds.intermediate import BoxBounds, enclose_box, rows_within
from shakeproof.bounds.leads import leads_below, lowest_leads, usual_shortfall
from shakeproof.bounds.optimise import ascend

__all__ = [
    "AlphaBetaCrown",
    "BoxBounds",
    "Boxes",
    "Domain",
    "Enclosed",
    "Enclosure",
    "Hulls",
    "Parts",
    "Planes",
    "ascend",
    "cells_within",
    "enclose",
    "enclose_box",
    "gradients_at",
    "leads_below",
    "lowest_leads",
    "planes_below",
    "pulled_back",
    "rows_within",
    "step",
    "usual_shortfall",
]
