# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lets the instances of a model have its weights in memory once.

ONNX Runtime maps external data, but then rearranges most weights for its kernels: a private copy in each process. It
can also write the rearranged weights to a file, and map them from there. So the first instance writes a model with such
a file to a temporary folder, and all instances open that one. It is for this version of ONNX Runtime and for this kind
of processor, and so goes with the last instance: see toolkit/shared_files.py.
"""

from __future__ import annotations

import os
from typing import List, Sequence

from pyruntime.backends.onnxruntime.contents import read_contents
from pyruntime.backends.toolkit.shared_files import SharedFile, Write, identity_of, share_file

# The free space that the temporary folder must have, in sizes of the model: it gets the weights twice, as they were
# and rearranged.
_SPACE = 3
# Describes each core of the processor, and the fields, on x86 and on ARM, by which ONNX Runtime can choose its kernels.
_PROCESSOR = "/proc/cpuinfo"
_KIND_FIELDS = ("vendor_id", "cpu family", "model", "stepping", "flags", "CPU ", "Features")
# The rearranged model, and its weights beside it.
MODEL, WEIGHTS = "model.onnx", "weights.bin"


def weight_bytes(path: str) -> int:
    """The size of a model file together with its external data. Raises OSError and ValueError."""
    return sum(map(os.path.getsize, _files(path)))


def share(path: str, libraries: Sequence[str], made_by: str, write: Write) -> SharedFile:
    """The rearranged model of the one in `path`, for all instances that have the same arguments and files.

    `libraries` are those of its operations, and `made_by` is what else its preparation depends on. Calls `write` in the
    first of the instances, while the others wait. Raises OSError, also if there is not enough space, ValueError, and
    what `write` raises.
    """
    files = _files(path)
    identity = [made_by, *_processor(), *map(identity_of, [*files, *libraries])]
    return share_file("pyruntime-onnxruntime", MODEL, identity, _SPACE * sum(map(os.path.getsize, files)), write)


def _processor() -> List[str]:
    """What the processor can do. Raises OSError."""
    with open(_PROCESSOR, encoding="utf-8", errors="replace") as file:
        return sorted({line for line in file if line.startswith(_KIND_FIELDS)})


def _files(path: str) -> List[str]:
    folder = os.path.dirname(path)
    return [path, *(os.path.join(folder, each) for each in sorted(read_contents(path).companions))]
