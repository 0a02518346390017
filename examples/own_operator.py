"""Add an operator, and test it in two lines with the checker that shakeproof's own operators pass."""

from dataclasses import dataclass

from torch import Tensor

from shakeproof.operators import Clip
from shakeproof.testing import check_operator


@dataclass(frozen=True, eq=False)
class HardTanh(Clip):
    """x limited to [-1, 1]: a clip with limits of its own."""

    low: float = -1.0
    high: float = 1.0

    def apply(self, *inputs: Tensor) -> Tensor:
        return inputs[0].clamp(-1, 1)


check_operator(HardTanh(), shapes=[(3, 4)])
print("all rules hold")


@dataclass(frozen=True, eq=False)
class Wrong(HardTanh):
    """One whose limits are not those that it computes with."""

    high: float = 0.9


try:
    check_operator(Wrong(), shapes=[(3, 4)])
except AssertionError as error:
    print(f"noticed: {str(error).splitlines()[0]}")
else:
    raise SystemExit("a broken rule was not noticed")
