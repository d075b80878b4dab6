# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Custom batching: a library that decides which requests of a native model are executed together.

It is called on the event loop's thread while a batch is formed, because another thread would delay each batch.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from typing import Protocol

from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.instances.native.memory import base_of, resolved
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.native.parameters import read_parameters
from pyruntime.utils.errors import InferenceError
from pyruntime.utils.request_codec import TensorRef, encode_request

_LOG = logging.getLogger("pyruntime.native")


class StrategyHandle(Protocol):
    """The extension's BatchStrategy: see native/_triton.pyi."""

    def begin(self) -> object: ...

    def include(self, wire: list[object], base: int, /) -> bool: ...

    def end(self) -> object: ...


class NativeStrategy:
    """See scheduling.batcher.Strategy. A failure of the library is logged.

    If `begin` fails, the library is not asked about that batch. `handle` is the extension's strategy; `memory` is the
    model's request memory.
    """

    def __init__(self, handle: StrategyHandle, failure: type[Exception], model: str, memory: RequestMemory) -> None:
        self._handle = handle
        self._failure = failure
        self._model = model
        self._memory = memory
        self._base = base_of(memory.region)
        self._begun = False

    def begin(self) -> None:
        """See Strategy."""
        self._begun = self._try("initialization", lambda: self._handle.begin() is None)

    def include(self, job: Job) -> bool:
        """See Strategy. As in Triton, a failure of the library counts as a no."""
        if not self._begun:
            return True
        try:
            wire = self._question(job)
            return self._try("include", lambda: self._handle.include(wire, self._base))
        except (
            InferenceError,
            OverflowError,
            TypeError,
            ValueError,
        ):  # such as a number beyond int64_t
            return True  # its execution reports the error

    def end(self) -> None:
        """See Strategy."""
        if self._begun:
            self._begun = False
            self._try("finalization", lambda: self._handle.end() is None)

    def _try(self, what: str, step: Callable[[], bool]) -> bool:
        try:
            return step()
        except self._failure as exc:
            _LOG.error("Custom batching %s function failed for model %s: %s", what, self._model, exc.args[1])
            return False

    def _question(self, job: Job) -> list[object]:
        """The request in the form that the extension reads. Raises InferenceError if its memory cannot be read."""
        # Contents inside the request are not copied: the library reads them only during this call.
        tensors: list[TensorRef] = [
            (name, datatype, shape, _address(at) - self._base if isinstance(at, bytes) else at, size, kind, device)
            for name, datatype, shape, at, size, kind, device in (
                resolved(job, self._memory, self._base) if job.regions else job.tensors
            )
        ]
        wire = encode_request(job.id, job.options, tensors, job.trace_context)
        read_parameters(wire)
        return wire


def _address(data: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0
