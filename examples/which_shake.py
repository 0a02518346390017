"""From a camera's data sheet to the question: how far does the picture move, and how long may it be exposed?"""

import math

from PIL import Image

import shakeproof as sp
from shakeproof import demo


def travel(amplitude: float, frequency: float, exposure: float) -> float:
    """The farthest that A sin(2 pi f t) goes while the shutter is open: to and fro, if it is open long enough."""
    return 2 * amplitude * math.sin(min(math.pi * frequency * exposure, math.pi / 2))


def odd_size(pixels: float) -> int:
    """The smallest kernel with a pixel in the middle that such a motion fits into."""
    return max(3, 2 * math.ceil((pixels - 1) / 2) + 1)


# A camera behind a windscreen. The focal length in pixels says how many pixels a radian is.
focal_length, pitch = 6e-3, 3e-6
focal_pixels = focal_length / pitch
exposure = 0.5 / 30  # 30 frames a second; the shutter is open for half of the time
print(f"{focal_pixels:.0f} pixels a radian, exposed for 1/{1 / exposure:.0f} s")

# The mount trembles up and down by 0.1 degrees, 20 times a second; the car turns by 30 degrees a second.
shaken = travel(math.radians(0.1), 20, exposure) * focal_pixels
turned = math.radians(30) * exposure * focal_pixels
print(f"vibration: {shaken:.2f} pixels up and down; turning: {turned:.2f} pixels to the side")

# A sign of 64 x 64 pixels (here, a smaller one enlarged) that is resized to the network's 32 x 32.
sign, label = next((path, label) for path, label in demo.images() if path.name == "warning.1.png")
Image.open(sign).resize((64, 64), Image.Resampling.LANCZOS).save("photo.png")
network = sp.load(demo.MODEL, preprocess=sp.Preprocessing(resize=32))

vibration = sp.profile(network, "photo.png", f"motion-blur:size={odd_size(shaken)},angle=0,at=original", label=label)
print(f"vibration: {vibration.status}, {vibration.sentence}")

turning = sp.profile(network, "photo.png", f"motion-length:angle=90,upto={turned:.2f},at=original", label=label)
length = turning.to_json()["parameter"]["certified"]
print(f"turning: {turning.status}, certified up to {length:.3f} pixels,")
print(f"so expose for at most 1/{math.ceil(math.radians(30) * focal_pixels / length)} s in such turns")
