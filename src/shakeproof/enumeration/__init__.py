"""All 8-bit pictures of a path: how many there are, where each begins, and what each is."""

from shakeproof.enumeration.pictures import EightBitPictures, HalfRule, eight_bit_pictures
from shakeproof.enumeration.running import side_by_side

__all__ = ["EightBitPictures", "HalfRule", "eight_bit_pictures", "side_by_side"]
