"""Checks for operators of your own: samples against every rule that the search for bounds and the sweep rely on.

A wrong rule does not crash. It proves what is not true. So whoever adds an operator tests it in two lines:

    from shakeproof.testing import check_operator
    check_operator(MyOperator(...), shapes=[(3, 4)])

`shapes` are those of its inputs, without the row axis; several inputs have several shapes. An operator that is not
defined everywhere says where its inputs may be, for all of them or for each: `within=(0.1, 5)`. What goes wrong is an
AssertionError that names each rule broken, the worst violation and the seed that repeats it. Which rules there are
depends on what the operator is (`rules_of` lists them): an `Affine` one has a magnitude and an adjoint, a
`PiecewiseLinear` one tells its breaks, a `Jumping` one where it leaves a value, an `Elementwise` one how far it strays
from lines.

What this can show: that a rule is broken, with an example. What it cannot show: that it is not. Samples are drawn at
random (from seeds: the same call draws the same ones), at several scales, inside and at the corners of cells and where
the operator's own bounds are attained; a mistake that only shows elsewhere stays hidden. Nor is it looked at whether
bounds are tight, breaks necessary, or the workspace large enough; nor whether the operator computes what its name says
(compare it with onnxruntime for that).

Violations are relative to the size of the values that are added up where they are found, and up to 1e-12 they are
rounding: float64 sums of some thousand terms agree to that, and no mistake that matters is as small. Where the operator
is tried in float32 it is 1e-4, and second derivatives are compared with differences to 1e-5.
"""

from shakeproof.testing.check import check_operator, rules_of

__all__ = ["check_operator", "rules_of"]
