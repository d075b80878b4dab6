# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Writes traces in a thread of its own, so that no request waits for a disk or a network.

The sink decides what it writes and where: see trace_file.py and collector.py.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from pyruntime.runtime.tracing.buckets import Write

_LOG = logging.getLogger("pyruntime.tracing")

# The time limit for writing the last traces when the server stops, in seconds.
CLOSE_S_MAX = 5.0


class Sink(Protocol):
    """The destination of traces. The writer's thread calls both methods, which must not raise."""

    def size(self, write: Write) -> int:
        """The size that counts for the writer's limits, for example the number of spans."""

    def write(self, writes: Sequence[Write], closing: threading.Event) -> None:
        """Write them. Must end soon after `closing` is set."""


class TraceWriter:
    """See the module. The thread begins with the first trace."""

    def __init__(self, sink: Sink, delay_s: float, batch_max: int, queue_max: int) -> None:
        """Write traces after `delay_s` seconds, or as soon as there are `batch_max`; drop traces while `queue_max` or
        more wait.
        """
        self._sink = sink
        self._delay_s = delay_s
        self._batch_max = batch_max
        self._queue_max = queue_max
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._waiting: deque[tuple[Write, int]] = deque()
        self._size = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def put(self, write: Write) -> None:
        """Queue traces for writing, or drop them if the queue is full."""
        size = self._sink.size(write)
        with self._changed:
            if self._size and self._size + size > self._queue_max:
                self._dropped += size
                return
            self._waiting.append((write, size))
            self._size += size
            if len(self._waiting) == 1 or self._size >= self._batch_max:
                self._changed.notify()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trace writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Write what waits, and end the thread. Traces that take longer than CLOSE_S_MAX are lost, with a log line."""
        with self._changed:
            self._closing.set()
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(CLOSE_S_MAX)
            if self._thread.is_alive():
                _LOG.warning("traces are lost, because writing the last ones took more than %g s", CLOSE_S_MAX)

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._sink.write(batch, self._closing)
            except Exception:
                _LOG.exception("traces cannot be written")

    def _next_batch(self) -> list[Write]:
        """Wait until traces are due and return them; empty if all are written and the server stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing.is_set())
            deadline = time.monotonic() + self._delay_s
            self._changed.wait_for(
                lambda: self._size >= self._batch_max or self._closing.is_set(), deadline - time.monotonic()
            )
            batch = []
            size = 0
            while self._waiting and size < self._batch_max:
                write, each = self._waiting.popleft()
                batch.append(write)
                size += each
            self._size -= size
            dropped, self._dropped = self._dropped, 0
        if dropped:
            _LOG.warning("%d traces or spans were dropped: they cannot be written as fast as they come", dropped)
        return batch
