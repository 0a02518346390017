"""An answer as one flat row: a line of `--output FILE.csv` and of `results`, and a row of the store's `answers`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from shakeproof.errors import InputError
from shakeproof.proof import CLAIMED, claim_of

# The columns of an answer: those of its JSON, its bracket and its counterexample spread over several.
BRACKET = ("critical_strength_low", "critical_strength_high")
COUNTEREXAMPLE = ("strength", "class", "margin", "replayed")
COLUMNS = (
    *("version", "model", "image", "label", "predicted", "perturbation", "strength", "status", *BRACKET),
    *("certified_strength", *(f"counterexample_{key}" for key in COUNTEREXAMPLE), "min_margin", "method", "pieces"),
    *("rounding", "arithmetic", "reason", "seconds", "profile", "requirement"),
)
# And what a store adds: what few answers have, what is claimed, and by what its parts are found again.
SELDOM = ("tested", "deployment", "remaining", "rest", "comparison", "as_pictures", "unperturbed")
STORED_COLUMNS = (
    *(*COLUMNS, *SELDOM, *CLAIMED),
    *("model_sha256", "image_sha256", "certificate_sha256", "finished"),
)
# What the store keeps of it beside its JSON, with SQLite's types; the rest is in the rows of models, images, ...
TYPES = {
    **dict.fromkeys(("version", "label", "predicted", "pieces", "counterexample_class"), "INTEGER"),
    **dict.fromkeys(("strength", "counterexample_strength"), "ANY"),  # JSON where there are several
    **dict.fromkeys(("status", "method", "rounding", "arithmetic", "reason", "profile", "requirement"), "TEXT"),
    **dict.fromkeys(("counterexample_replayed", *SELDOM, CLAIMED[0]), "TEXT"),
    **dict.fromkeys((*BRACKET, "certified_strength", "counterexample_margin", "min_margin", "seconds"), "REAL"),
    **dict.fromkeys(CLAIMED[1:], "REAL"),
    "unperturbed": "INTEGER",
}


def flat(answer: Mapping[str, Any], columns: Iterable[str] = COLUMNS) -> list[Any]:
    """An answer's JSON as one value for each column; lists, objects, true and false as JSON."""
    low, high = answer["critical_strength"] or (None, None)
    shown = answer["counterexample"] or {}
    spread = {f"counterexample_{key}": shown.get(key) for key in COUNTEREXAMPLE}
    values = map({**answer, **dict(zip(BRACKET, (low, high), strict=True)), **spread}.get, columns)
    return [json.dumps(value) if isinstance(value, (bool, list, dict)) else value for value in values]


def read_record(text: str) -> dict[str, Any]:
    """An answer's JSON, as it is kept."""
    try:
        return dict(json.loads(text))
    except (RecursionError, TypeError, ValueError) as error:
        raise InputError(f"not a result as shakeproof writes it ({type(error).__name__}: {error})") from error


def with_claim(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer's JSON, and what it claims."""
    claim = claim_of(answer)
    return {**answer, **dict(zip(CLAIMED, (claim.verdict.value, claim.proved, claim.lost), strict=True))}


def csv_lines(rows: Iterable[Sequence[Any]]) -> Iterator[str]:
    """Rows of a table as CSV lines: None is empty, and each row is one line, even with odd names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        yield text.getvalue()[:-1].replace("\r", "\\r").replace("\n", "\\n") + "\n"
        text.seek(0)
        text.truncate()
