# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What Triton's own tests use of `triton_python_backend_utils`, and models need not."""

from __future__ import annotations

from typing import Any

from pyruntime.stub.host import get_host
from pyruntime.stub.logs import LOGGER


class SharedMemory:
    """The memory that the model's responses are written to."""

    def free_memory(self) -> int:
        """How many bytes of it are free. Equal numbers before and after mean that nothing was left there meanwhile."""
        return get_host().free_memory()


shared_memory = SharedMemory()


def async_event_future_done_callback(py_future: Any) -> None:
    """Log the exception that a future, or a task, has ended with: for its `add_done_callback`."""
    if py_future.cancelled():
        return
    exc = py_future.exception()
    if exc is not None:
        LOGGER.error("a coroutine of the model failed: %r", exc, exc_info=exc)
