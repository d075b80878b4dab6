# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pb_utils.PreferredMemory` and `InferenceTrace`, optional arguments of a BLS request. (pure)"""

from __future__ import annotations

from typing import Optional

from pyruntime.stub.pb_utils.arguments import INT64, as_integer
from pyruntime.stub.pb_utils.functions import MemoryType


class PreferredMemory:
    """Where the outputs of a BLS request shall lie: in main memory, or on a GPU, by its number in this process.

    Without one they stay where the other model has them, if this process can read them there. Where a GPU cannot be
    used they are in main memory.
    """

    __slots__ = ("_device_id", "_memory_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        """Raises TypeError for an invalid memory type or device."""
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError(
                "preferred_memory_type must be TRITONSERVER_MEMORY_GPU or TRITONSERVER_MEMORY_CPU, "
                f"found {preferred_memory_type!r}"
            )
        self._memory_type = preferred_memory_type
        self._device_id = as_integer(preferred_device_id, "preferred_device_id", INT64)

    @property
    def _gpu(self) -> Optional[int]:
        """The number of the GPU; None for main memory."""
        return self._device_id if self._memory_type is MemoryType.TRITONSERVER_MEMORY_GPU else None

    def __repr__(self) -> str:
        return f"PreferredMemory({self._memory_type.name}, {self._device_id})"


class InferenceTrace:
    """The trace of a request, which a model can pass to its own BLS requests."""

    __slots__ = ("_context",)

    def __init__(self, context: str = "") -> None:
        self._context = context

    def get_context(self) -> Optional[str]:
        """The OpenTelemetry context as a JSON object in text (`{"traceparent": ...}`); None if there is none."""
        # A trace that is not from a client has a number as context, which only the server understands.
        return self._context if self._context.startswith("{") else None
