"""Files of torch.export (.pt2), read without running anything that stands in them.

`torch.export.load` trusts its file. It unpickles weights, constants and sample inputs that are marked so, loads
compiled libraries, evaluates the text of symbolic sizes, looks operators up by any dotted name below `torch`, and
executes the text of guards when the module is made; names of arguments become Python source. So the archive is looked
at first, and everything must be of the plain kinds that `torch.export.save` writes for a network of tensors.
"""

from __future__ import annotations

import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from shakeproof.errors import InputError
from shakeproof.network.build import LARGEST_VALUE
from shakeproof.network.model_file import MOST_UNPACKED
from shakeproof.network.torch_rules import OPERATORS

# What an archive of one program holds, below a folder of its own.
MEMBERS = re.compile(
    r"[^/]+/(models/model\.json|data/(weights|constants)/(\w+|model_(weights|constants)_config\.json)"
    r"|data/sample_inputs/model\.pt|archive_format|archive_version|byteorder|\.data/(version|serialization_id)|version)"
)
NAME = re.compile(r"[\w.]*")
# What an operator is told in words: a mode, or the equation of an einsum.
WORDS = re.compile(r"[\w., >-]*")
OPERATOR = re.compile(r"torch\.ops\.(aten|prims)\.([a-zA-Z]\w*|_[a-zA-Z]\w*)\.\w+|_operator\.getitem")
SIZES_OF = re.compile(
    r"torch\.sym_\w+|_operator\.(add|sub|mul|floordiv|mod|eq|ne|lt|le|gt|ge)|torch\.ops\.aten\.sym_\w+\.\w+"
)
# Symbols, numbers and arithmetic, and no way to call anything else.
EXPRESSION = re.compile(
    r"(Symbol\('[suz]\d+'(, (positive|nonnegative|integer)=True)*\)|[suz]\d+|\d+"
    r"|Integer|Add|Mul|Pow|FloorDiv|CleanDiv|Mod|PythonMod|Max|Min|[-+*/(), ])*"
)
# Text that is stored along and never evaluated: where a node came from.
REMARKS = ("metadata", "torch_version", "verifiers")


class _UnsafeError(Exception):
    """What a file holds that could run code."""


def loaded(path: Path, data: bytes) -> ExportedProgram:
    """The program in a .pt2 file's bytes."""
    try:
        _check(data)
        with _silence():
            return torch.export.load(io.BytesIO(data))
    except _UnsafeError as problem:
        raise InputError(
            f"{path}: holds {problem}, which could run code when it is loaded; export the network to ONNX"
        ) from None
    except Exception as error:  # torch.export raises whatever it meets in a file
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(f"{path}: not a torch.export file that torch {torch.__version__} reads ({said})") from error


@contextmanager
def _silence() -> Iterator[None]:
    """Errors are told in one line, by us: not by torch's log with a traceback before it."""
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def _check(data: bytes) -> None:
    """Raise `_UnsafeError` unless everything in an archive is known to be plain data."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        _require(len({member.filename for member in members}) == len(members), "one name twice")
        _require(sum(member.file_size for member in members) <= MOST_UNPACKED, "more than it may unpack to")
        for member in members:
            _require(MEMBERS.fullmatch(member.filename), f"the member {member.filename!r}")
            if member.filename.endswith("_config.json"):
                _check_tensors(json.loads(archive.read(member)))
            elif member.filename.endswith("models/model.json"):
                _check_program(json.loads(archive.read(member)))
            elif member.filename.endswith("sample_inputs/model.pt") and member.file_size:
                try:
                    torch.load(io.BytesIO(archive.read(member)), weights_only=True)
                except Exception:  # whatever it is, torch.export would unpickle it in full next
                    raise _UnsafeError("sample inputs that are not plain tensors") from None


def _check_tensors(config: Any) -> None:
    """Weights and constants: raw numbers only, and no more of them than a network may have."""
    for key, entry in config["config"].items():
        plain = not entry["use_pickle"] and re.fullmatch(r"(weight|tensor)_\w+", entry["path_name"])
        _require(plain and NAME.fullmatch(key), f"the pickled object {key!r}")
        entries = prod(size["as_int"] for size in entry["tensor_meta"]["sizes"])
        _require(0 <= entries <= LARGEST_VALUE, f"the weight {key!r} of {entries} entries")


def _check_program(program: Any) -> None:
    _require(not program.get("guards_code"), "guards, which are Python text")
    _check_text(program, "")


def _check_text(value: Any, key: str) -> None:
    """Every text in the program is a name, an operator, a size, or a description of nested tuples of such."""
    if isinstance(value, dict):
        if "target" in value and "inputs" in value:
            _check_node(value)
        for inner, held in value.items():
            _require(NAME.fullmatch(inner), f"the name {inner!r}")
            if inner not in REMARKS:
                _check_text(held, inner)
    elif isinstance(value, list):
        for held in value:
            _check_text(held, key)
    elif isinstance(value, str):
        if key == "expr_str":
            _require(EXPRESSION.fullmatch(value), f"the size {value!r}")
        elif key in ("in_spec", "out_spec", "context") and value[:1] in ("[", "{", '"'):
            _check_text(json.loads(value), "context")
        else:
            allowed = WORDS if key == "as_string" else NAME
            _require(allowed.fullmatch(value), f"the text {value[:80]!r}")


def _check_node(node: Any) -> None:
    """An operator of torch's own; one that takes text (the name of a file, say) must be one that is analysed."""
    target = node["target"]
    found = OPERATOR.fullmatch(target)
    _require(found or SIZES_OF.fullmatch(target), f"the operator {target!r}")
    takes_text = "as_string" in json.dumps(node["inputs"])
    _require(not takes_text or (found and found[2] in OPERATORS), f"the operator {target!r} with a text")


def _require(holds: Any, otherwise: str) -> None:
    if not holds:
        raise _UnsafeError(otherwise)
