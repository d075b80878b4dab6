# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads libraries by the dynamic loader of this process. It never unloads them.

It calls dlopen as a C function and not by ctypes.CDLL(path), which holds the GIL while a library of a gigabyte is
mapped, relocated and initialised; every request would wait for that.
"""

from __future__ import annotations

import ctypes
import mmap
import os

from pyruntime.runtime.native.elf import ElfError, SharedObject, Symbols, read_shared_object, read_symbols

SERVER = "libtritonserver.so"

_process = ctypes.CDLL(None)
_process.dlopen.argtypes = (ctypes.c_char_p, ctypes.c_int)
_process.dlopen.restype = ctypes.c_void_p
_process.dlsym.argtypes = (ctypes.c_void_p, ctypes.c_char_p)
_process.dlsym.restype = ctypes.c_void_p
_process.dlerror.restype = ctypes.c_char_p


def read_library(path: str) -> tuple[SharedObject, Symbols]:
    """Parse the library in a file. Raises OSError and ElfError."""
    with open(path, "rb") as file:
        try:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        except ValueError as error:
            raise ElfError("is empty") from error
        with mapped:
            return read_shared_object(mapped), read_symbols(mapped)


def open_library(name: str, *, is_global: bool = False) -> None:
    """Load a library by path, or by a name that the loader searches. Raises OSError with the loader's message.

    A global library resolves symbols of all libraries that are loaded later, even if they do not name it. Blocks.
    """
    mode = os.RTLD_NOW | (os.RTLD_GLOBAL if is_global else os.RTLD_LOCAL)
    if _process.dlopen(os.fsencode(name), mode) is None:
        raise OSError((_process.dlerror() or b"unknown error").decode(errors="backslashreplace"))


def is_loaded(name: str) -> bool:
    """Whether the process has loaded a library of this path or name."""
    return _find(name) is not None


def missing_symbols(name: str, symbols: frozenset[str]) -> list[str]:
    """The symbols that neither the loaded library `name` nor its dependencies have, sorted."""
    handle = _find(name)
    return sorted(symbol for symbol in symbols if _process.dlsym(handle, symbol.encode()) is None)


def mapped_files() -> list[str]:
    """The paths of all files that the process maps, including deleted ones."""
    paths: dict[str, None] = {}
    with open("/proc/self/maps", encoding="utf-8", errors="backslashreplace") as maps:
        for line in maps:
            # Address, permissions, offset, device, inode and, for a file, its path.
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith("/"):
                paths[fields[5].removesuffix(" (deleted)")] = None
    return list(paths)


def _find(name: str) -> int | None:
    handle: int | None = _process.dlopen(os.fsencode(name), os.RTLD_NOW | os.RTLD_NOLOAD)
    return handle
