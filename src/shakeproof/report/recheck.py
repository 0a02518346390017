"""Re-checks a bundle from what is in it: python recheck.py. Needs Python and numpy, nothing else.

Certificates of enumerations speak of onnxruntime, and are checked with it.

Exit code 0: every file is the one that was bundled, and every certificate holds and says what the evidence says of it.
1: not so. A report runs the same check when it is written.
"""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(HERE / "checker"))  # the checker of the bundle, and none that may be installed

from shakeproof.checker import MALFORMED, Outcome, Refused, check, unpack  # noqa: E402

MANIFEST, EVIDENCE = "manifest.json", "evidence.json"


def detailed(said: Mapping[str, Any]) -> str:
    """One digest of what a question has beside its text: kernels from files, and how pictures reach the network."""
    details = [said.get(key) for key in ("kernels", "mean", "std", "channels_last", "rounding")]
    return hashlib.sha256(json.dumps(details).encode()).hexdigest()


def examined(row: Mapping[str, Any], certificate: bytes, model: bytes, image: Path | None = None) -> Outcome:
    """Whether a certificate holds, and is about the item of the evidence whose row this is."""
    outcome = check(certificate, model, image, _silently)
    if not outcome.accepted:
        return outcome
    try:
        wrong = [*_differences(row, certificate)]
    except (Refused, *MALFORMED) as error:
        wrong = [str(error)]
    return Outcome(False, f"is about something else: {'; '.join(wrong)}", outcome.details) if wrong else outcome


def _silently(share: float) -> None:
    pass


def _differences(row: Mapping[str, Any], certificate: bytes) -> Iterator[str]:
    header, arrays = unpack(certificate)
    strength = row["strength"]
    said = {
        "model_sha256": row["model_sha256"],
        "image_sha256": row["image_sha256"],
        "perturbation": row["perturbation"],
        "label": row["label"],
        "arithmetic": row["arithmetic"],
        "strength": [*strength] if isinstance(strength, (list, tuple)) else [strength],
    }
    yield from (f"{key} is {header[key]!r}, not {value!r}" for key, value in said.items() if header[key] != value)
    if detailed(header) != row["details_sha256"]:
        yield "its kernels, its mean and std, or how pictures are laid out or rounded are others"
    enumerated = [winner for _, winner in header.get("intervals", [])]
    winners = enumerated or (arrays["winners"].tolist() if "winners" in arrays else [header["label"]])
    rivals = [winner for winner in winners if winner not in (header["label"], -1)]
    at_start = bool(rivals) and winners[0] == rivals[0] and not any(arrays.get("witness", ()))
    supported = {"safe": header["claim"] == "safe", "unsafe": bool(rivals), "misclassified": at_start}
    if not supported.get(row["verdict"], False):
        yield f"its claim, {header['claim']}, does not show that the item is {row['verdict']}"


def main() -> int:
    manifest = json.loads((HERE / MANIFEST).read_text("utf-8"))
    worst = 0
    for name, digest in manifest["files"].items():
        path = HERE / name
        if not path.is_file() or hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            worst = 1
            sys.stdout.write(f"{name}: is missing, or is not the file that was bundled\n")
    evidence = json.loads((HERE / EVIDENCE).read_text("utf-8"))
    rows = next(section["rows"] for section in evidence["sections"] if section["heading"] == "Results")
    held = bare = claimed = 0
    for row in rows:
        if not row.get("certificate_sha256"):
            bare, claimed = bare + 1, claimed + (row["verdict"] in ("safe", "unsafe", "misclassified"))
            continue
        outcome = _from_files(row, manifest)
        held += outcome.accepted
        if not outcome.accepted:
            worst = 1
        word = "holds" if outcome.accepted else "DOES NOT HOLD"
        sys.stdout.write(f"item {row['item']}, {row['verdict']}: {word}: {outcome.sentence}\n")
    sys.stdout.write(
        f"{held} of {len(rows) - bare} certificates hold; {claimed} verdicts have none, and rest on the tool;"
    )
    sys.stdout.write(f" of {bare - claimed} items nothing is claimed.\n")
    return worst


def _from_files(row: Mapping[str, Any], manifest: Mapping[str, Any]) -> Outcome:
    certificate = HERE / "certificates" / f"{row['certificate_sha256']}.cert"
    model, image = (manifest[kind].get(row[f"{kind[:-1]}_sha256"]) for kind in ("models", "images"))
    try:
        data = certificate.read_bytes()
        if hashlib.sha256(data).hexdigest() != row["certificate_sha256"] or model is None or image is None:
            return Outcome(False, "its certificate, network or image is not in the bundle", {})
        return examined(row, data, (HERE / model).read_bytes(), HERE / image)
    except OSError as error:
        return Outcome(False, f"cannot be read ({error})", {})


if __name__ == "__main__":
    sys.exit(main())
