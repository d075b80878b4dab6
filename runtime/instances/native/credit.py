# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How a native backend learns that a client takes its responses. (pure)

A thread of a backend that sends a response to a request waits while too many of those before are not taken: see
runtime/native/triton/response_window.h.
"""

from __future__ import annotations

from pyruntime.runtime.instances.native.instance_spec import NativeHandle
from pyruntime.runtime.requests.types import InferResponse


class Credit:
    """The `take` and `release` of one response among many to the request of a serial: says once that it is taken."""

    __slots__ = ("_handle", "_serial")

    def __init__(self, handle: NativeHandle, serial: int) -> None:
        self._handle: NativeHandle | None = handle
        self._serial = serial

    def take(self) -> None:
        """See InferResponse."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.take(self._serial)


def credit(handle: NativeHandle, serial: int, outcome: object) -> None:
    """Tell the backend when a response to the request of this serial is taken. What is none is taken at once."""
    if isinstance(outcome, InferResponse):
        outcome.take = outcome.release = Credit(handle, serial).take
    else:
        handle.take(serial)
