# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a model file by its looks, before a framework reads it.

Frameworks explain files of another kind, and files that were cut off, by places in their own source, if at all: some
end the process. A load and `pyruntime inspect` say the same of a file.
"""

from __future__ import annotations

import json
import mmap
import struct
import zipfile
from itertools import islice
from pathlib import Path

_PICKLES = (".pkl", ".joblib")
_ARCHIVES = (".pt", ".pt2", ".skops")
_ARCHIVE = b"PK\x03\x04"
_POINTER = b"version https://git-lfs"
# Git LFS itself takes no longer ones.
_POINTER_BYTES_MAX = 1024
# Of the files of a folder no more are looked at: it may have an environment in it.
FILES_MAX = 10_000
# Enough for all beginnings.
_HEAD_BYTES = 64
# How whole files of a suffix begin and end.
_ENDS = {".json": (b"{", b"}"), ".ubj": (b"{", b"}"), ".xml": (b"<", b">")}
# Models of LightGBM have text of any kind after it.
_LIGHTGBM_HEADS, _LIGHTGBM_END = (b"tree\nversion=v3", b"tree\nversion=v4"), b"end of trees"
# A file of safetensors: the length of its header, the header in JSON, and the tensors, whose places are in the header.
_LENGTH = struct.Struct("<Q")
# As safetensors itself has it.
_HEADER_BYTES_MAX = 100_000_000
_CUT_OFF = "is cut off: it was not written or copied to its end"


def fault_of_file(path: Path) -> str:
    """What is wrong with a file whatever its backend, as a sentence; "" if nothing is, as far as its looks tell.

    Raises OSError.
    """
    if not path.stat().st_size:
        return f"'{path}' is empty"
    head = _head(path)
    if head.startswith(_POINTER):
        return f"'{path}' is a pointer of Git LFS and not the file: get it with git lfs pull"
    if path.suffix in _ARCHIVES and head.startswith(_ARCHIVE) and not zipfile.is_zipfile(path):
        return f"'{path}' {_CUT_OFF}"
    if path.suffix == ".txt" and head.startswith(_LIGHTGBM_HEADS) and not has_text(path, _LIGHTGBM_END):
        return f"'{path}' {_CUT_OFF}"
    if path.suffix in _ENDS:
        begin, end = _ENDS[path.suffix]
        if head.lstrip().startswith(begin) and not _tail(path).endswith(end):
            return f"'{path}' {_CUT_OFF}"
    if path.suffix == ".safetensors" and not _is_whole(path):
        return f"'{path}' {_CUT_OFF}, or is no file of safetensors"
    # Older files of torch.save are pickles in pickles, and state dicts among them are weights.
    if path.suffix not in (*_PICKLES, ".pt", ".pt2") and _is_pickle(head):
        return f"'{path}' is a pickle of Python, and no {path.suffix[1:] or 'model'}: save the model in its own format"
    if path.suffix == ".skops" and not head.startswith(_ARCHIVE):
        return f"'{path}' is no file of skops: save the model with skops.io.dump"
    return ""


def fault_in_folder(folder: Path) -> str:
    """What is wrong with the first file in a folder that is a pointer of Git LFS, or a part of one of safetensors.

    "" if none is, among those that are looked at. Raises OSError.
    """
    for path in sorted(islice(folder.rglob("*"), FILES_MAX)):
        is_pointer = path.is_file() and path.stat().st_size <= _POINTER_BYTES_MAX and _head(path).startswith(_POINTER)
        fault = fault_of_file(path) if is_pointer or path.suffix == ".safetensors" else ""
        if fault:
            return fault
    return ""


def has_text(path: Path, text: bytes) -> bool:
    """Whether a file that is not empty has a text somewhere. Raises OSError."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return data.find(text) >= 0


def _is_whole(path: Path) -> bool:
    """Whether a file of safetensors has all that its header says."""
    size = path.stat().st_size - _LENGTH.size
    with open(path, "rb") as file:
        length = file.read(_LENGTH.size)
        if size < 0 or _LENGTH.unpack(length)[0] > min(size, _HEADER_BYTES_MAX):
            return False
        (header_bytes,) = _LENGTH.unpack(length)
        try:
            header = json.loads(file.read(header_bytes))
            ends = [each["data_offsets"][1] for name, each in header.items() if name != "__metadata__"]
            return bool(size - header_bytes >= max(ends, default=0))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):  # the framework says what is wrong
            return True


def _is_pickle(head: bytes) -> bool:
    """Whether a file begins as pickles do since protocol 2."""
    return len(head) > 1 and head[0] == 0x80 and 2 <= head[1] <= 5


def _head(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(_HEAD_BYTES)


def _tail(path: Path) -> bytes:
    """The end of a file, without white space."""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - mmap.PAGESIZE))
        return file.read().rstrip()
