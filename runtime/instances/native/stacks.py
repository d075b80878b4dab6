# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Answers `pyruntime stack` for the native instances of the server: see utils/stacks.py for the protocol.

Native code has no Python stack, and its own stack is not examined. The answer is what the event loop knows. All
instances share one bell; each has a file of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping

from pyruntime.runtime.execution.job import Job
from pyruntime.utils.stacks import END, FILE_NAME, Heading, encode_heading

_LOG = logging.getLogger("pyruntime.native")

# Requests that arrive while an answer is written share the next answer.
_RINGS_AT_ONCE = 4096


class NativeStacks:
    """See the module. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        """Raises OSError."""
        self._loop = asyncio.get_running_loop()
        # By file: the size of its heading, and the function that returns the rest.
        self._files: dict[int, tuple[int, Callable[[], str]]] = {}
        self._bell, self._ringing = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._loop.add_reader(self._bell, self._answer)

    def open(self, model: str, version: int, instance: str, tell: Callable[[], str]) -> Callable[[], None]:
        """Answer for an instance with the text that `tell` returns. Call the function returned to stop.

        A system that does not permit this is logged; the model is served nevertheless.
        """
        heading = Heading(os.getpid(), os.readlink(f"/proc/self/fd/{self._bell}"), model, str(version), instance)
        text = encode_heading(heading)
        try:
            file = os.memfd_create(FILE_NAME)
        except OSError as exc:
            _LOG.warning("`pyruntime stack` will not find %s: %s", instance, exc.strerror)
            return lambda: None
        os.write(file, text)
        self._files[file] = len(text), tell
        return lambda: self._close(file)

    def close(self) -> None:
        """Stop to answer for any instance."""
        self._loop.remove_reader(self._bell)
        for fd in (self._bell, self._ringing, *self._files):
            os.close(fd)
        self._files.clear()

    def _close(self, file: int) -> None:
        if self._files.pop(file, None) is not None:
            os.close(file)

    def _answer(self) -> None:
        os.read(self._bell, _RINGS_AT_ONCE)
        for file, (start, tell) in self._files.items():
            if os.fstat(file).st_size == start:  # the asker truncates it first; a longer one is answered
                os.pwrite(file, tell().encode("utf-8", "backslashreplace") + END, start)


def describe(inflight: Iterable[int], jobs: Mapping[Job, int], now_ns: int) -> str:
    """The activity of an instance. `inflight` are serials of batches; `jobs` are jobs with their send times."""
    serials = list(inflight)
    if not serials:
        return f"executes nothing; {len(jobs)} requests are not done with"
    # The backend may have finished that job already.
    given_ns = next((ns for job, ns in jobs.items() if job.serial == serials[0]), None)
    since = "" if given_ns is None else f", which it was given {(now_ns - given_ns) / 1e9:.3f} s ago"
    return f"executes a batch{since}; {len(serials) - 1} wait behind it"
