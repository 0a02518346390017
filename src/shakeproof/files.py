"""Files: read only if they are regular files, written whole or not at all; and their names as text."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shakeproof.errors import InputError

MOST_TEXT = 2**24
# As much as is written to find out whether a disk has room: a block.
TRIAL = bytes(4096)


def try_writing(path: Path) -> None:
    """An error if a file cannot be written in its folder, as a trial shows, which leaves nothing behind."""
    draft = _draft(path)
    try:
        try:
            draft.write_bytes(TRIAL)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def write_whole(files: Mapping[Path, bytes]) -> None:
    """All files or none: they are written under other names first."""
    drafts = {_draft(path): path for path in files}
    try:
        for draft, path in drafts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            check_regular(path)  # a file would take the place of a device
            draft.write_bytes(files[path])
        for draft, path in drafts.items():
            draft.replace(path)
    except OSError as error:
        where = next(iter(files)) if len(files) == 1 else next(iter(files)).parent
        raise _unwritable(where, error) from error
    finally:
        for draft in drafts:
            with suppress(OSError):  # it has been moved, or never was
                draft.unlink()


def read_text(path: Path) -> str:
    """A small file of text, in UTF-8."""
    check_regular(path)
    try:
        with path.open("rb") as stream:
            data = stream.read(MOST_TEXT + 1)
        if len(data) > MOST_TEXT:
            raise InputError(f"{path}: is too large")
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: is not UTF-8 text") from error


def readable_name(name: str) -> str:
    """A name as text: file names may hold bytes that are not UTF-8, which are shown by their codes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def check_regular(path: Path) -> None:
    """Refuse anything but a regular file: a folder, or a named pipe, whose reader would wait for ever."""
    if os.path.exists(path) and not path.is_file():
        raise InputError(f"{path}: is {'a folder' if path.is_dir() else 'not a regular file'}; name a file")


def _draft(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: cannot be written ({error.strerror}); choose a writable folder with enough space")
