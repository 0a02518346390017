"""Makes the pictures of docs/howto/camera.md: for each group of families, an example that flips a bundled sign.

    python tools/make_examples.py [--output docs/pictures/examples]

Each is made by `shakeproof profile ... --counterexample`, as the page says.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import numpy as np

from shakeproof import demo

EXAMPLES = {
    "optical": "otf:size=15,jitter=1.5,aperture=0.3",
    "motion": "rolling-shutter:size=11,top=45,bottom=135",
    "sensor": "downsample:factor=3",
    "atmosphere": "haze:colour=0.8",
    "yours": "custom:file=double.npy,normalise=yes",
}


@click.command()
@click.option("--output", type=click.Path(path_type=Path), default=Path("docs/pictures/examples"), show_default=True)
def main(output: Path) -> None:
    """Write a picture for each group."""
    output = output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as folder:
        demo.write_files(Path(folder))
        np.save(Path(folder, "double.npy"), np.pad([[1.0, 0, 0, 0, 0, 0, 1.0]], ((3, 3), (0, 0))))
        for group, text in EXAMPLES.items():
            words = [
                "profile",
                "model.onnx",
                "warning.png",
                "-p",
                text,
                "--counterexample",
                str(output / f"{group}.png"),
            ]
            subprocess.run([sys.executable, "-m", "shakeproof", *words, "--quiet"], cwd=folder, check=False)


if __name__ == "__main__":
    main()
