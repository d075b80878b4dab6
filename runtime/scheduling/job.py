# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A request on its way through a scheduler and an instance. (pure)"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyruntime.runtime.inference import InferRequest, InferResponse
from pyruntime.utils.errors import InferenceError

# Called exactly once, on the event loop's thread, with the response or with why there is none. It must not raise.
Done = Callable[[InferResponse | InferenceError], None]


@dataclass(slots=True, eq=False)
class Job:
    """One accepted request. `arrived_ns` is on the monotonic clock that hosts and stubs share."""

    request: InferRequest
    done: Done
    arrived_ns: int
