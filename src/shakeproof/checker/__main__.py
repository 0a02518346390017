"""python -m shakeproof.checker CERTIFICATE... --model MODEL [--image IMAGE] [--json]"""

import argparse
import json
import sys
from pathlib import Path

from shakeproof.checker import check


def main() -> int:
    """0 if all certificates hold, 1 if one does not, 2 if a file cannot be read or the call is wrong."""
    parser = argparse.ArgumentParser(prog="python -m shakeproof.checker", description="Checks certificates.")
    parser.add_argument("certificates", nargs="+", type=Path, metavar="CERTIFICATE")
    parser.add_argument("--model", required=True, type=Path, help="the .onnx or .onnx.gz file")
    parser.add_argument(
        "--image", type=Path, help="compare with it: .npy, .npz@INDEX by pixels, others by the digest of the file alone"
    )
    parser.add_argument("--effort", type=float, default=1.0, help="multiplies what a check may cost (docs/checker.md)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options, worst = parser.parse_args(), 0
    for path in options.certificates:
        try:
            outcome = check(path.read_bytes(), options.model.read_bytes(), options.image, effort=options.effort)
        except OSError as error:
            sys.stderr.write(f"{path}: cannot be read ({error})\n")
            worst = 2
            continue
        report = {"certificate": str(path), "accepted": outcome.accepted, "sentence": outcome.sentence}
        line = f"{path}: {'holds' if outcome.accepted else 'does not hold'}: {outcome.sentence}"
        sys.stdout.write((json.dumps(report | outcome.details) if options.json else line) + "\n")
        worst = max(worst, 0 if outcome.accepted else 1)
    return worst


if __name__ == "__main__":
    sys.exit(main())
