"""Exact analysis along lines: every breakpoint of a piecewise-linear network, none left out."""

from shakeproof.exact.curve import CertifiedCell, Curve, Piece, assemble, join
from shakeproof.exact.lines import cores_for, pieces_left, swept_curves, threads_for
from shakeproof.exact.rational import Least, RationalNetwork
from shakeproof.exact.sweep import Lines, longest_window, sweep, usual_breaks
