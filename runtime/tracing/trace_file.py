# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes traces to files. Each file is valid JSON after every write, also while the server runs."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from io import FileIO
from itertools import count
from pathlib import Path

from pyruntime.runtime.tracing.buckets import Write
from pyruntime.runtime.tracing.records import encode_records

_LOG = logging.getLogger("pyruntime.tracing")


class TraceFile:
    """`path` and, for traces in files of their own, `path`.0, `path`.1 and so on. Replaces existing files."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).absolute()  # a native backend may change the server's current folder
        self._numbers = count()
        self._begun = False
        self._failed = False

    def size(self, write: Write) -> int:
        """See Sink."""
        return len(write.traces)

    def write(self, writes: Sequence[Write], closing: threading.Event) -> None:
        """See Sink."""
        together = [trace for write in writes if not write.apart for trace in write.traces]
        try:
            if together:
                self._append(encode_records(together))
            for write in writes:
                if write.apart:
                    self._replace(self._path.with_name(f"{self._path.name}.{next(self._numbers)}"), write)
            self._failed = False
        except OSError as exc:
            if not self._failed:  # once, and not for every trace
                self._failed = True
                _LOG.error("traces are lost, because '%s' cannot be written: %s", self._path, exc.strerror)

    def _append(self, records: bytes) -> None:
        # A user may have moved the file away since the last write.
        mode = "r+b" if self._begun and self._path.exists() else "wb"
        with FileIO(self._path, mode) as file:
            end = file.seek(0, os.SEEK_END)
            if end:
                _write(file, end - 1, b",%b]" % records, instead=b"]")
            else:
                _write(file, 0, b"[%b]" % records, instead=b"")
        self._begun = True

    def _replace(self, path: Path, write: Write) -> None:
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_bytes(b"[%b]" % encode_records(write.traces))
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _write(file: FileIO, at: int, data: bytes, instead: bytes) -> None:
    """Write `data` after the first `at` bytes. If the disk is full, restore `instead`, which was there before.

    Raises OSError if it cannot be written.
    """
    file.seek(at)
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError:
        file.truncate(at)
        file.seek(at)
        file.write(instead)  # For which there was room before.
        raise
