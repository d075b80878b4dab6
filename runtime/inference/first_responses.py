# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Notes when the first response to a request is sent, for the histogram of first responses."""

from __future__ import annotations

import time

from pyruntime.runtime.execution.job import Job, Relay
from pyruntime.runtime.observe.statistics import ModelStatistics
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.utils.errors import InferenceError


class FirstResponse(Relay):
    """The `respond` of a job, with an error as good as a response; an end without either is none."""

    __slots__ = ("_arrived_ns", "_is_noted", "_statistics")

    def __init__(self, job: Job, statistics: ModelStatistics) -> None:
        super().__init__(job.respond)
        self._arrived_ns = job.arrived_ns
        self._statistics = statistics
        self._is_noted = False

    def __call__(self, outcome: InferResponse | InferenceError | None, final: bool) -> None:
        """See execution.job.Respond."""
        if outcome is not None and not self._is_noted:
            self._is_noted = True
            self._statistics.first_response(time.monotonic_ns() - self._arrived_ns)
        self.client(outcome, final)
