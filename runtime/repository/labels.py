# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The label files of a model: what its outputs' elements are called, one line each, for clients that want classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.repository.model_files import read_file
from pyruntime.utils.errors import LoadError

# A million labels, the most that a classification has elements, of 60 bytes each.
LABELS_BYTES_MAX = 64 << 20


def read_labels(folder: str, outputs: Iterable[TensorSpec]) -> dict[str, tuple[str, ...]]:
    """The labels of those outputs that have a file of them in the model's folder. Raises LoadError.

    Whatever is not UTF-8 in them can be written again with "surrogateescape".
    """
    return {output.name: _read(Path(folder, output.label_filename)) for output in outputs if output.label_filename}


def _read(path: Path) -> tuple[str, ...]:
    text = read_file(path, LABELS_BYTES_MAX + 1)
    if len(text) > LABELS_BYTES_MAX:
        raise LoadError(f"the labels in {path} have more than {LABELS_BYTES_MAX} bytes")
    # As in Triton, a line ends with a line feed and with nothing else.
    return tuple(text.decode(errors="surrogateescape").split("\n"))
