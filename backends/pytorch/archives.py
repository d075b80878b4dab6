# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Says what a file of PyTorch is, by the names in its archive: TorchScript, an exported program, or weights."""

from __future__ import annotations

import zipfile
from typing import Iterable

TORCHSCRIPT = "TorchScript"
EXPORTED = "torch.export"
AOT_INDUCTOR = "AOTInductor"
WEIGHTS = "weights"


def kind_of(path: str) -> str:
    """The kind of a file. A file that is no archive can only have weights, in an older format."""
    if not zipfile.is_zipfile(path):
        return WEIGHTS
    with zipfile.ZipFile(path) as archive:
        return kind_of_names(archive.namelist())


def kind_of_names(names: Iterable[str]) -> str:
    """The kind of an archive with these files, which are in a folder of any name."""
    # The first part is the folder that has the archive's name.
    inside = [name.partition("/")[2] for name in names]
    if any(name.startswith("data/aotinductor/") for name in inside):
        return AOT_INDUCTOR
    if any(name == "archive_format" or name.startswith("models/") for name in inside):
        return EXPORTED
    if any(name == "constants.pkl" or name.startswith("code/") for name in inside):
        return TORCHSCRIPT
    return WEIGHTS
