# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The times of an ensemble's steps, as a parameter of a response. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import orjson

# The parameter with which a client asks for the time of each step, and that of the response which has them.
STEP_TIMES = "pyruntime_step_times"


@dataclass(slots=True)
class StepTime:
    """The time of one step, as a client reads it: offsets from the arrival of the request, in microseconds.

    The step was started at `start_us`, its model began to execute it at `execute_us`, and it ended at `end_us`.
    """

    step: int
    model: str
    version: int
    start_us: int
    execute_us: int
    end_us: int


def encode_step_times(times: Iterable[StepTime]) -> str:
    """The value of the parameter of the response: JSON."""
    return orjson.dumps(list(times)).decode()


def decode_step_times(text: str) -> list[StepTime]:
    """The times in a parameter of a response. Raises ValueError."""
    try:
        return [StepTime(**each) for each in orjson.loads(text)]
    except TypeError as exc:
        raise ValueError("these are no times of steps") from exc
