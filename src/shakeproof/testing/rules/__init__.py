"""Every rule that operators have to keep, by the kind of operator that has it."""

from shakeproof.testing.rules import affine, bending, enclosing, function, jumping
from shakeproof.testing.rules.base import RULES, Check, Rule

__all__ = ["RULES", "Check", "Rule", "affine", "bending", "enclosing", "function", "jumping"]
