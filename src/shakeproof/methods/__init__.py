"""The ways to answer queries: a sweep for paths of piecewise-linear networks, splitting for everything else."""

from shakeproof.methods.splitting import answer_by_splitting
from shakeproof.methods.sweeping import answer_by_sweep, lines_at_once

__all__ = ["answer_by_splitting", "answer_by_sweep", "lines_at_once"]
