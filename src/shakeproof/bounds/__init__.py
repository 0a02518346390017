"""Sound linear bounds: forward through the network for every neuron, backward (CROWN) from what must hold."""

from typing import TYPE_CHECKING

from shakeproof import names_on_first_use
from shakeproof.bounds.crown import Planes, leads_below, lowest_leads, planes_below, pulled_back, usual_shortfall
from shakeproof.bounds.forward import Boxes, Domain, Enclosed, Enclosure, Shares, cells_within, enclose, step

if TYPE_CHECKING:
    from shakeproof.bounds.alpha_beta import AlphaBetaCrown, Parts, ascend
    from shakeproof.bounds.intermediate import BoxBounds, enclose_box, rows_within

# Only boxes of many inputs need alphas and betas.
__getattr__ = names_on_first_use(__name__, __file__)
