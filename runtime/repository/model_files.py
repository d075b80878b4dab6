# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the files that a model's configuration names."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyruntime.utils.errors import LoadError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """What the system has against reading a file of a model's is a LoadError, in Triton's words."""
    try:
        yield
    except OSError as exc:
        raise LoadError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except ValueError as exc:  # A name with a NUL in it.
        raise LoadError(f"failed to open text file for read {path}: {exc}") from exc


def read_file(path: Path, size_max: int) -> bytes:
    """The first bytes of a file, as many as there are up to `size_max`. Raises LoadError."""
    with reading(path), open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise LoadError(f"failed to open text file for read {path}: it is no file")
        return file.read(size_max) or b""  # None: some in /proc have nothing to read yet.


def _open_at_once(path: str, flags: int) -> int:
    # To open a pipe takes until somebody writes to it, and nobody else is served meanwhile.
    return os.open(path, flags | os.O_NONBLOCK)
