"""Pictures: which ones words stand for, what files hold, and how that is a network's picture."""

from shakeproof.images.image import Image, RawImage, as_picture
from shakeproof.images.labelling import labelled, read_images, subfolder_names
from shakeproof.images.loading import pictures_for
from shakeproof.images.words import Source, Subfolder, one_source, read_image, sources

__all__ = [
    "Image",
    "RawImage",
    "Source",
    "Subfolder",
    "as_picture",
    "labelled",
    "one_source",
    "pictures_for",
    "read_image",
    "read_images",
    "sources",
    "subfolder_names",
]
