# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that differ only in their tensors' contents, decoded and checked once. (pure)

Most requests of a client have the same JSON header, byte for byte; and unless a tensor is BYTES, whether a request is
right depends on nothing but its header. So a model remembers, for each header, the request that it led to: as the
stub reads it, with the places of its tensors counted from the body's start.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pyruntime.runtime.frontends.kserve_request import OutputOptions
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.scheduling.job import Job, Respond

# Headers remembered for one model, and how long one may be: half a MiB of them.
PLANS_KEPT_MAX = 256
HEADER_KEPT_BYTES_MAX = 2048


class Plan:
    """What a header leads to. `body_size` is the only size of body it fits."""

    __slots__ = ("_fields", "_rows", "_signature", "_tensors", "body_size", "options")

    def __init__(self, job: Job, base: int, body_size: int, options: OutputOptions) -> None:
        *self._fields, tensors = job.wire
        self._tensors = [(name, datatype, shape, at - base, size) for name, datatype, shape, at, size in tensors]
        self._rows = job.rows
        self._signature: Hashable | None = job.signature
        self.body_size = body_size
        self.options = options

    def job(self, slot: RequestSlot, respond: Respond, now_ns: int) -> Job:
        """The job of a request that arrives now and whose body lies in `slot`."""
        base = slot.offset
        tensors: list[Any] = [(name, kind, shape, base + at, size) for name, kind, shape, at, size in self._tensors]
        return Job("", [*self._fields, tensors], self._rows, self._signature, [slot], respond, now_ns)


class Plans:
    """The plans of one model, by header."""

    def __init__(self) -> None:
        self._plans: dict[bytes, Plan] = {}

    def find(self, header: bytes, body_size: int) -> Plan | None:
        """The plan for a request with this header and a body of so many bytes, header included."""
        plan = self._plans.get(header)
        return plan if plan is not None and plan.body_size == body_size else None

    def remember(self, header: bytes, job: Job, slot: RequestSlot, options: OutputOptions) -> None:
        """Keep a plan of `job`, whose body lies in `slot`: if every request with this header is as right as this one.

        Not so if a tensor is BYTES, whose contents have to be looked at; nor if one lies anywhere but in the body: that
        is memory of this job alone. An id is not likely to come again.
        """
        if len(header) > HEADER_KEPT_BYTES_MAX or job.id:
            return
        end = slot.offset + slot.size
        for _, datatype, _, at, size in job.wire[-1]:
            if datatype == "BYTES" or not slot.offset <= at <= at + size <= end:
                return
        if len(self._plans) >= PLANS_KEPT_MAX:
            self._plans.clear()
        self._plans[header] = Plan(job, slot.offset, slot.size, options)
