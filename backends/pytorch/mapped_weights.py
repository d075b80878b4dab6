# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Lets the instances of a model have tensors of torch in memory once, in the pages of the file they were loaded from.

Loaders of TorchScript and of exported programs copy what they read. So a tensor is replaced afterwards by the part of
the file that has the same bytes. Which part belongs to which tensor is not read: equal bytes are enough. A tensor
that was converted or rearranged has no such part, and stays.
"""

from __future__ import annotations

import struct
import zipfile
from typing import Any, Dict, Iterable, Iterator, List, Tuple

import numpy as np

# Each mapping has a cost of its own, which smaller tensors are not worth.
MAPPED_BYTES_MIN = 1 << 20
# The header of a file in an archive: 26 bytes, the lengths of its name and of its extra field, which follow it.
_ZIP_HEADER = struct.Struct("<26xHH")


def share_weights(torch: Any, tensors: Iterable[Any], path: str) -> None:
    """Replace the memory of tensors on the CPU by that of an archive of torch, as far as it has the same bytes.

    A tensor that is written to gets pages of its own. Raises OSError if the file cannot be read.
    """
    offsets: Dict[int, List[int]] = {}
    for offset, size in _parts(path):
        if size >= MAPPED_BYTES_MIN:
            offsets.setdefault(size, []).append(offset)
    mapped: Dict[int, Any] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if tensor.device.type != "cpu" or storage.nbytes() not in offsets:
            continue
        address = storage.data_ptr()
        if address not in mapped:
            mapped[address] = _map_equal(torch, storage, path, offsets[storage.nbytes()])
        found = mapped[address]
        if found is not None:
            typed = found.view(tensor.dtype)
            tensor.data = typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())


def _map_equal(torch: Any, storage: Any, path: str, offsets: List[int]) -> Any:
    """The bytes of the file that are those of a storage; None if there are none."""
    own = torch.empty(0, dtype=torch.uint8).set_(storage)
    for offset in offsets:
        # Copied on write: torch knows no tensors that must not be written to.
        found = torch.from_numpy(np.memmap(path, np.uint8, "c", offset, (storage.nbytes(),)))
        if torch.equal(found, own):
            return found
    return None


def _parts(path: str) -> Iterator[Tuple[int, int]]:
    """The offset and the size of each part of the file that may be a tensor."""
    with open(path, "rb") as file:
        with zipfile.ZipFile(file) as archive:
            stored = [each for each in archive.infolist() if each.compress_type == zipfile.ZIP_STORED]
        for info in stored:
            file.seek(info.header_offset)
            lengths = _ZIP_HEADER.unpack(file.read(_ZIP_HEADER.size))
            yield info.header_offset + _ZIP_HEADER.size + sum(lengths), info.file_size
