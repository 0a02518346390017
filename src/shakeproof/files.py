"""Files that are read only if they are files, and written whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from shakeproof.errors import InputError


def write_whole(files: Mapping[Path, bytes]) -> None:
    """All files or none: they are written under other names first."""
    drafts = {path.with_name(f".{path.name}.{os.getpid()}"): path for path in files}
    try:
        for draft, path in drafts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, f"{path.name} is a folder")
            draft.write_bytes(files[path])
        for draft, path in drafts.items():
            draft.replace(path)
    except OSError as error:
        where = next(iter(files)) if len(files) == 1 else next(iter(files)).parent
        raise InputError(f"{where}: cannot be written ({error.strerror}); choose a folder you may write to") from error
    finally:
        for draft in drafts:
            with suppress(OSError):  # it has been moved, or never was
                draft.unlink()


def check_regular(path: Path) -> None:
    """Refuse what is no file with bytes in it: a folder, or a named pipe, whose reader would wait for ever."""
    if os.path.exists(path) and not path.is_file():
        raise InputError(f"{path}: is {'a folder' if path.is_dir() else 'no regular file'}; name a file")
