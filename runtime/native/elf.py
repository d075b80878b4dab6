# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses shared libraries in ELF format: the name, the needed libraries and symbols, the exported symbols. (pure)

image   := header segment* ...         header names the table of segments
segment := LOAD | DYNAMIC | ...        LOAD maps addresses to offsets; there is one DYNAMIC
DYNAMIC := (tag:i64 value:u64)* NULL   values are numbers, addresses, or offsets into the table of strings
symbol  := name:u32 info:u8 other:u8 section:u16 value:u64 size:u64

It reads what the dynamic loader reads, and not the table of sections, which a library may lack. The format has no
number of symbols; it follows from the hash table by which the loader finds them. For any bytes the result is a value or
an ElfError, in time linear in the size of the file.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

Image = bytes | mmap.mmap

# The sizes of a program header, an entry of DYNAMIC and a symbol in every 64-bit file.
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SEGMENT = struct.Struct("<IIQQQQQQ")
ENTRY = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_WORD = struct.Struct("<I")
_HASH = struct.Struct("<II")
_GNU_HASH = struct.Struct("<IIII")

MACHINES = {62: "x86_64", 183: "aarch64"}
_SHARED = 3
_LOAD, _DYNAMIC = 1, 2
_NULL, _NEEDED, _OLD_HASH, _STRINGS, _SYMBOLS, _STRINGS_BYTES = 0, 1, 4, 5, 6, 10
_SONAME, _RPATH, _RUNPATH, _NEW_HASH = 14, 15, 29, 0x6FFFFEF5
_LOCAL, _GLOBAL, _WEAK = 0, 1, 2
_INTERNAL, _HIDDEN = 1, 2

# Linkers write a dozen; the header allows 65,535.
SEGMENTS_MAX = 256
# One per needed library and about thirty more; the largest frameworks have a hundred.
ENTRIES_MAX = 10_000
# The largest frameworks export 200,000.
SYMBOLS_MAX = 2_000_000
# The limit for all names together, because names may overlap: a small file could contain any number of long ones.
NAME_BYTES_MAX = 256 << 20


class ElfError(ValueError):
    """The bytes are not a valid shared library; the message is the end of a sentence about the file."""


@dataclass(frozen=True, slots=True)
class SharedObject:
    """The dynamic section of a library, without symbols.

    `soname` is the name by which other libraries need it, "" if it has none. `rpath` and `runpath` are the folders to
    search for `needed`, unchanged: `$ORIGIN` stands for the folder of the file.
    """

    machine: str
    soname: str
    needed: tuple[str, ...]
    rpath: tuple[str, ...]
    runpath: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Symbols:
    """The symbols that a library exports, and those that it needs."""

    exported: frozenset[str]
    undefined: frozenset[str]


def read_shared_object(image: Image) -> SharedObject:
    """Parse the dynamic section of a library. Raises ElfError."""
    return _Reader(image).shared_object()


def read_symbols(image: Image) -> Symbols:
    """Parse the symbols of a library. Raises ElfError."""
    return _Reader(image).symbols()


class _Reader:
    """Parses one image."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._bytes = len(image)
        self._name_bytes = 0
        self._loads: list[tuple[int, int, int]] = []
        ident = image[:16]
        if ident[:4] != b"\x7fELF":
            raise ElfError("is no ELF file")
        # First of all, because 32-bit and big-endian headers have another layout.
        if ident[4:5] == b"\1":
            raise ElfError("is built for a 32-bit machine")
        if ident[4:6] != b"\2\1":
            raise ElfError("is built for a machine of another byte order")
        header = self._unpack(_HEADER, 0)
        if header[1] != _SHARED:
            raise ElfError("is no shared library")
        if header[2] not in MACHINES:
            raise ElfError(f"is built for machine {header[2]} of ELF, which is neither x86_64 nor aarch64")
        self._machine = MACHINES[header[2]]
        self._entries = self._read_dynamic(segments_at=header[5], segment_bytes=header[9], count=header[10])
        strings_bytes = self._one(_STRINGS_BYTES)
        self._strings = self._offset_of(self._one(_STRINGS))
        if self._strings + strings_bytes > self._bytes:
            raise ElfError("is truncated: its table of strings goes beyond its end")
        self._strings_end = self._strings + strings_bytes

    def shared_object(self) -> SharedObject:
        """See read_shared_object."""
        soname = self._entries.get(_SONAME)
        return SharedObject(
            self._machine,
            self._string(soname[0]) if soname else "",
            tuple(map(self._string, self._entries.get(_NEEDED, ()))),
            self._folders(_RPATH),
            self._folders(_RUNPATH),
        )

    def symbols(self) -> Symbols:
        """See read_symbols."""
        count = self._count_symbols()
        start = self._offset_of(self._one(_SYMBOLS))
        end = start + count * _SYMBOL.size
        if count > SYMBOLS_MAX:
            raise ElfError(f"has {count} symbols, more than {SYMBOLS_MAX}")
        if end > self._bytes:
            raise ElfError("is truncated: its table of symbols goes beyond its end")
        exported, undefined = set(), set()
        for name, kind, visibility, section, _, _ in _SYMBOL.iter_unpack(self._image[start:end]):
            binding = kind >> 4
            if not name or binding == _LOCAL:
                continue
            if section and visibility & 3 not in (_INTERNAL, _HIDDEN):
                exported.add(self._string(name))
            elif not section and binding != _WEAK:
                undefined.add(self._string(name))
        return Symbols(frozenset(exported), frozenset(undefined))

    def _read_dynamic(self, segments_at: int, segment_bytes: int, count: int) -> dict[int, list[int]]:
        """Record the LOAD segments, and read DYNAMIC."""
        if segment_bytes != SEGMENT.size or count > SEGMENTS_MAX:
            raise ElfError(f"is damaged: it has {count} segments of {segment_bytes} bytes")
        dynamic = None
        for index in range(count):
            segment = self._unpack(SEGMENT, segments_at + index * SEGMENT.size)
            kind, _, offset, address, _, file_bytes, _, _ = segment
            if kind == _LOAD:
                self._loads.append((address, file_bytes, offset))
            elif kind == _DYNAMIC:
                dynamic = offset, file_bytes
        if dynamic is None:
            raise ElfError("is no shared library: it has nothing for the dynamic loader")
        return self._read_entries(*dynamic)

    def _read_entries(self, offset: int, size: int) -> dict[int, list[int]]:
        entries: dict[int, list[int]] = {}
        count = size // ENTRY.size
        if count > ENTRIES_MAX:
            raise ElfError(f"is damaged: its dynamic segment has {count} entries")
        for index in range(count):
            tag, value = self._unpack(ENTRY, offset + index * ENTRY.size)
            if tag == _NULL:
                break
            entries.setdefault(tag, []).append(value)
        return entries

    def _count_symbols(self) -> int:
        """The number of symbols, from the hash table that the loader would use.

        A GNU hash table does not contain undefined symbols. They come before all others, so the highest number in it
        counts them too. In a library without exports it is empty.
        """
        if new := self._entries.get(_NEW_HASH):
            return self._count_by_new_hash(self._offset_of(new[0]))
        if old := self._entries.get(_OLD_HASH):
            _, count = self._unpack(_HASH, self._offset_of(old[0]))
            return int(count)
        raise ElfError("is damaged: it has no hash table of its symbols")

    def _count_by_new_hash(self, table: int) -> int:
        buckets, first, bloom_words, _ = self._unpack(_GNU_HASH, table)
        buckets_at = table + _GNU_HASH.size + bloom_words * 8
        chains_at = buckets_at + buckets * _WORD.size
        if chains_at > self._bytes:
            raise ElfError("is truncated: its hash table goes beyond its end")
        last = max((word for (word,) in _WORD.iter_unpack(self._image[buckets_at:chains_at])), default=0)
        if last < first:
            return int(first)
        # Bit 0 marks the end of a chain, and the chain that begins last ends last.
        while not self._unpack(_WORD, chains_at + (last - first) * _WORD.size)[0] & 1:
            last += 1
        return int(last) + 1

    def _folders(self, tag: int) -> tuple[str, ...]:
        return tuple(
            folder for value in self._entries.get(tag, ()) for folder in self._string(value).split(":") if folder
        )

    def _string(self, start: int) -> str:
        """The string at an offset into the table of strings."""
        start += self._strings
        # mmap.find, unlike bytes.find, raises an error for offsets beyond the end.
        end = self._image.find(b"\0", start, self._strings_end) if start < self._strings_end else -1
        if end < 0:
            raise ElfError("is damaged: a name in it does not end")
        self._name_bytes += end - start
        if self._name_bytes > NAME_BYTES_MAX:
            raise ElfError(f"is damaged: the names in it come to more than {NAME_BYTES_MAX} bytes")
        return self._image[start:end].decode("utf-8", "backslashreplace")

    def _one(self, tag: int) -> int:
        """The value of a mandatory entry."""
        values = self._entries.get(tag)
        if not values:
            raise ElfError(f"is damaged: its dynamic segment has no entry {tag}")
        return values[0]

    def _offset_of(self, address: int) -> int:
        """The offset in the file of an address in memory."""
        for start, size, offset in self._loads:
            if start <= address < start + size:
                return address - start + offset
        raise ElfError(f"is damaged: address 0x{address:x} is nowhere in it")

    def _unpack(self, layout: struct.Struct, offset: int) -> tuple[int, ...]:
        if offset + layout.size > self._bytes:
            raise ElfError("is truncated")
        return layout.unpack_from(self._image, offset)
