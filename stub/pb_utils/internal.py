# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of `triton_python_backend_utils` that Triton's own tests use, and models do not need."""

from __future__ import annotations

from typing import Any

from pyruntime.stub.host import get_host
from pyruntime.stub.logs import LOGGER


class SharedMemory:
    """The memory for the model's responses."""

    def free_memory(self) -> int:
        """The number of free bytes. Equal numbers before and after an operation mean that it leaked nothing."""
        return get_host().free_memory()


shared_memory = SharedMemory()


def async_event_future_done_callback(py_future: Any) -> None:
    """Log the exception of a future or task: for its `add_done_callback`."""
    if py_future.cancelled():
        return
    exc = py_future.exception()
    if exc is not None:
        LOGGER.error("a coroutine of the model failed: %r", exc, exc_info=exc)
