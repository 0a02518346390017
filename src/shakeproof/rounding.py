"""How large a margin must be before float64 rounding cannot explain it."""

from __future__ import annotations

# Shares of the scores that a margin separates, and of the largest value inside the network.
OF_SCORES, OF_VALUES = 1e-9, 1e-12
