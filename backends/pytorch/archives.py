# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Says what a file of PyTorch is, by what its archive has: TorchScript, an exported program, weights, or a pickle."""

from __future__ import annotations

import pickletools
import zipfile
from typing import IO, Iterable

# Python code with a torch.nn.Module, which the weights beside it belong to.
SOURCE = "model.py"

TORCHSCRIPT = "TorchScript"
EXPORTED = "torch.export"
AOT_INDUCTOR = "AOTInductor"
WEIGHTS = "weights"
PICKLE = "pickle"
UNKNOWN = "a file of torch"

# How pickles begin, and the modules of what those of weights consist of.
_PICKLE_START = b"\x80"
_MODULES_OF_WEIGHTS = ("collections", "torch", "torch._utils", "torch.storage", "torch._tensor", "torch.nn.parameter")


def kind_of(path: str) -> str:
    """The kind of a file. One that is no archive may have weights, in an older format. Raises OSError.

    PICKLE is an archive of objects of other classes than weights have. UNKNOWN is none of all, such as an archive
    without its end.
    """
    if not zipfile.is_zipfile(path):
        with open(path, "rb") as file:
            return WEIGHTS if file.read(1) == _PICKLE_START else UNKNOWN
    with zipfile.ZipFile(path) as archive:
        kind = kind_of_names(archive.namelist())
        if kind == WEIGHTS:
            pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if not pickles:
                return UNKNOWN
            with archive.open(pickles[0]) as pickle:
                return WEIGHTS if _has_weights_only(pickle) else PICKLE
        return kind


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


def _has_weights_only(pickle: IO[bytes]) -> bool:
    """Whether a pickle, which is not loaded, names no classes but those that weights consist of."""
    try:
        found = [str(argument) for opcode, argument, _ in pickletools.genops(pickle) if opcode.name == "GLOBAL"]
    except ValueError:
        return True  # torch says what is wrong with it
    return all(name.partition(" ")[0] in _MODULES_OF_WEIGHTS for name in found)
