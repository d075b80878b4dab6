# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The two functions that a custom library calls during execution: to get a block of an input, and an output buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from pyruntime.backends.custom import abi
from pyruntime.backends.custom.payload import Payload


class Callbacks:
    """The functions, for the requests in `payloads`. A context is the number of one of them, from 1 on.

    A library of version 2 may prefer a kind of memory. It gets memory of a GPU where a tensor lies there, or may be
    written there, else that of the CPU.
    """

    def __init__(self, version: int) -> None:
        self.payloads: Sequence[Payload] = ()
        # C functions, which live as long as these objects.
        self.get_input = abi.GetNextInput[version](self._get_input)
        self.get_output = abi.GetOutput[version](self._get_output)

    def _get_input(self, context: Any, name: Any, content: Any, size: Any, *memory: Any) -> bool:
        try:
            content[0], size[0], gpu = self._payload(context).next_input(name, _preferred_gpu(*memory))
            _set_memory(gpu, *memory)
        except Exception as exc:  # an exception cannot propagate through the calling C code
            return _refuse("input", name, exc)
        return True

    def _get_output(
        self, context: Any, name: Any, dim_count: int, dims: Any, size: int, content: Any, *memory: Any
    ) -> bool:
        try:
            shape = dims[:dim_count] if dim_count else []
            content[0], gpu = self._payload(context).output(name, shape, size, _preferred_gpu(*memory))
            _set_memory(gpu, *memory)
        except Exception as exc:
            return _refuse("output", name, exc)
        return True

    def _payload(self, context: int | None) -> Payload:
        if not context or context > len(self.payloads):
            raise ValueError("there is no request with this context")
        return self.payloads[context - 1]


def _preferred_gpu(memory_type: Any = None, memory_type_id: Any = None) -> int | None:
    """The number of the GPU whose memory is preferred, None for memory of the CPU."""
    if memory_type is None or memory_type[0] != abi.MEMORY_GPU:
        return None
    gpu: int = memory_type_id[0]
    return gpu


def _set_memory(gpu: int | None, memory_type: Any = None, memory_type_id: Any = None) -> None:
    if memory_type is not None:
        memory_type[0], memory_type_id[0] = (abi.MEMORY_CPU, 0) if gpu is None else (abi.MEMORY_GPU, gpu)


def _refuse(what: str, name: bytes | None, exc: Exception) -> bool:
    text = (name or b"").decode(errors="replace")
    pb_utils.Logger.log_error(f"the library asked in vain for {what} '{text}': {type(exc).__name__}: {exc}")
    return False
