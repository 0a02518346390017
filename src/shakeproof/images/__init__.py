"""Pictures: which ones words stand for, what files hold, and how that is a network's picture."""

from shakeproof.images.image import Image, RawImage, as_picture
from shakeproof.images.words import Source, Subfolder, one_source, read_image, sources

__all__ = ["Image", "RawImage", "Source", "Subfolder", "as_picture", "one_source", "read_image", "sources"]
