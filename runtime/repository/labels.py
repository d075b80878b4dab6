# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The label files of a model: what its outputs' elements are called, one line each, for clients that want classes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.utils.errors import LoadError

# A million labels, the most that a classification has elements, of 60 bytes each.
LABELS_BYTES_MAX = 64 << 20


def read_labels(folder: str, outputs: Iterable[TensorSpec]) -> dict[str, tuple[str, ...]]:
    """The labels of those outputs that have a file of them in the model's folder. Raises LoadError.

    Whatever is not UTF-8 in them can be written again with "surrogateescape".
    """
    return {output.name: _read(Path(folder, output.label_filename)) for output in outputs if output.label_filename}


def _read(path: Path) -> tuple[str, ...]:
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LoadError(f"failed to open text file for read {path}: it is no file")
            text = file.read(LABELS_BYTES_MAX + 1) or b""  # None: some in /proc have nothing to read yet.
    except OSError as exc:
        raise LoadError(f"failed to open text file for read {path}: {exc.strerror}") from exc
    except ValueError as exc:  # A name with a NUL in it.
        raise LoadError(f"failed to open text file for read {path}: {exc}") from exc
    if len(text) > LABELS_BYTES_MAX:
        raise LoadError(f"the labels in {path} have more than {LABELS_BYTES_MAX} bytes")
    # As in Triton, a line ends with a line feed and with nothing else.
    return tuple(text.decode(errors="surrogateescape").split("\n"))


def _open_at_once(path: str, flags: int) -> int:
    # To open a pipe takes until somebody writes to it, and nobody else is served meanwhile.
    return os.open(path, flags | os.O_NONBLOCK)
