"""What happens to pictures on their way to a network: size and range before they are perturbed, normalisation after."""

from shakeproof.preprocessing.hugging_face import read_preprocessing
from shakeproof.preprocessing.preprocessing import PRESETS, RESAMPLING, Preprocessing

__all__ = ["PRESETS", "RESAMPLING", "Preprocessing", "read_preprocessing"]
