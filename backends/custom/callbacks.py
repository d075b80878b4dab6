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

    All memory is CPU memory, even if a library of version 2 prefers another kind.
    """

    def __init__(self, version: int) -> None:
        self.payloads: Sequence[Payload] = ()
        # C functions, which live as long as these objects.
        self.get_input = abi.GetNextInput[version](self._get_input)
        self.get_output = abi.GetOutput[version](self._get_output)

    def _get_input(self, context: Any, name: Any, content: Any, size: Any, *memory: Any) -> bool:
        try:
            content[0], size[0] = self._payload(context).next_input(name)
            _set_memory(*memory)
        except Exception as exc:  # an exception cannot propagate through the calling C code
            return _refuse("input", name, exc)
        return True

    def _get_output(
        self, context: Any, name: Any, dim_count: int, dims: Any, size: int, content: Any, *memory: Any
    ) -> bool:
        try:
            content[0] = self._payload(context).output(name, dims[:dim_count] if dim_count else [], size)
            _set_memory(*memory)
        except Exception as exc:
            return _refuse("output", name, exc)
        return True

    def _payload(self, context: int | None) -> Payload:
        if not context or context > len(self.payloads):
            raise ValueError("there is no request with this context")
        return self.payloads[context - 1]


def _set_memory(memory_type: Any = None, memory_type_id: Any = None) -> None:
    if memory_type is not None:
        memory_type[0], memory_type_id[0] = abi.MEMORY_CPU, 0


def _refuse(what: str, name: bytes | None, exc: Exception) -> bool:
    text = (name or b"").decode(errors="replace")
    pb_utils.Logger.log_error(f"the library asked in vain for {what} '{text}': {type(exc).__name__}: {exc}")
    return False
