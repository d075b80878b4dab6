# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Builds a shared library that is only another name for a loaded one. (pure)

image   := header segments dynamic symbols hash strings
strings := NUL soname NUL needed NUL

Tools that repair wheels rename libraries, for example to `libtritonserver-717102f0.so`. A backend from such a wheel
needs the server under this name, and would load the wheel's complete Triton server. The loader only needs some library
with the name, so this module builds one that depends on `libtritonserver.so`, which is ours.
"""

from __future__ import annotations

import struct

from pyruntime.runtime.native.elf import ENTRY, MACHINES, SEGMENT

_MACHINES = {name: number for number, name in MACHINES.items()}
_HEADER_BYTES = 64
_SYMBOL_BYTES = 24
# Segments are aligned to pages, which have up to 64 KiB on aarch64.
_PAGE_BYTES = 64 << 10


def make_shim(soname: str, needed: str, machine: str) -> bytes:
    """The library named `soname` that needs the library named `needed`, for one of the machines in elf.py."""
    strings = b"\0" + soname.encode() + b"\0" + needed.encode() + b"\0"
    segments = 3
    entries = 8
    dynamic_at = _HEADER_BYTES + segments * SEGMENT.size
    symbols_at = dynamic_at + entries * ENTRY.size
    # The loader requires a symbol table. Its first entry is no symbol; the hash table is one empty chain.
    hashes = struct.pack("<IIII", 1, 1, 0, 0)
    hash_at = symbols_at + _SYMBOL_BYTES
    strings_at = hash_at + len(hashes)
    size = strings_at + len(strings)
    dynamic = (
        (14, 1),  # SONAME
        (1, 1 + len(soname.encode()) + 1),  # NEEDED
        (4, hash_at),
        (5, strings_at),
        (6, symbols_at),
        (10, len(strings)),
        (11, _SYMBOL_BYTES),
        (0, 0),
    )
    return b"".join(
        (
            struct.pack("<4s5B7x", b"\x7fELF", 2, 1, 1, 0, 0),
            struct.pack("<HHIQQQ", 3, _MACHINES[machine], 1, 0, _HEADER_BYTES, 0),
            struct.pack("<IHHHHHH", 0, _HEADER_BYTES, SEGMENT.size, segments, 0, 0, 0),
            # LOAD, writable: loaders turn the addresses in the dynamic segment into real ones, in place.
            SEGMENT.pack(1, 6, 0, 0, 0, size, size, _PAGE_BYTES),
            # DYNAMIC
            SEGMENT.pack(2, 6, dynamic_at, dynamic_at, dynamic_at, entries * ENTRY.size, entries * ENTRY.size, 8),
            # GNU_STACK: without it the loader would make every stack of the process executable.
            SEGMENT.pack(0x6474E551, 6, 0, 0, 0, 0, 0, 16),
            b"".join(ENTRY.pack(*entry) for entry in dynamic),
            bytes(_SYMBOL_BYTES),
            hashes,
            strings,
        )
    )
