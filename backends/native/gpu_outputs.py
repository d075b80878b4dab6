# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory on GPUs for outputs of a native backend, where other processes can open them: see stub/gpu_memory.py.

The thread of the backend that asks for it waits for the answer, as for that of any call. It may take a question to the
host, so the thread that handles events does not answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyruntime.stub.client_memory import GpuOutputs
from pyruntime.stub.pb_utils.leased import slot_on

if TYPE_CHECKING:
    from pyruntime.runtime.native import _triton
    from pyruntime.stub.gpu_memory import GpuMemory
    from pyruntime.stub.pb_utils.request import InferenceRequest


class NativeGpuOutputs:
    """See the module."""

    def __init__(self) -> None:
        self._memory: GpuMemory | None = None

    def allowed(self, request: InferenceRequest) -> tuple[str, ...] | None:
        """The names of the outputs of a request that may be on a GPU; None if there are none."""
        wanted = request._outputs
        if type(wanted) is not GpuOutputs:
            return None
        self._memory = wanted.regions.gpu
        return tuple(wanted.staying)

    def answer(self, call: _triton.Call, gpu: int, size: int) -> None:
        """Answer a call for memory on a GPU, by its number in this process. Blocks."""
        assert self._memory is not None  # `allowed` has allowed it
        slot = slot_on(self._memory, gpu, size)
        call.answer(None if slot is None else (slot.pointer, slot))
