# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that differ only in their tensors' contents, decoded and checked once. (pure)

Most requests of a client have the same JSON header, byte for byte, or the same gRPC message but for its contents and
its id; and unless a tensor is BYTES, whether a request is right depends on nothing but that and the sizes of its
contents. So a model remembers, for each header, the request that it led to: as the stub reads it, with the places of
its tensors counted from the slot's start.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.scheduling.job import Job, Respond

# Headers remembered for one model, and how long one may be: half a MiB of them.
PLANS_KEPT_MAX = 256
HEADER_KEPT_BYTES_MAX = 2048

# The size of an HTTP body, header included; or those of the contents of each tensor.
Sizes = int | tuple[int, ...]


class RequestPlan:
    """What a header leads to. `sizes` are the only ones that it fits; `options` are the frontend's own.

    `known` is what the model's instances find such requests by, None if it has not been asked for, False if by nothing.
    """

    __slots__ = ("_fields", "_signature", "_tensors", "known", "options", "rows", "sizes")

    def __init__(self, job: Job, base: int, sizes: Sizes, options: Any) -> None:
        _, *self._fields, tensors = job.wire
        self._tensors = [(name, datatype, shape, at - base, size) for name, datatype, shape, at, size in tensors]
        self.rows = job.rows
        self._signature: Hashable | None = job.signature
        self.sizes = sizes
        self.options = options
        self.known: Any = None

    def job(self, slot: RequestSlot, respond: Respond, now_ns: int, id: str = "") -> Job:
        """The job of a request that arrives now and whose tensors lie in `slot`."""
        base = slot.offset
        tensors: list[Any] = [(name, kind, shape, base + at, size) for name, kind, shape, at, size in self._tensors]
        return Job(id, [id, *self._fields, tensors], self.rows, self._signature, [slot], respond, now_ns)

    def wire(self, base: int) -> list[Any]:
        """The request on the wire, without an id, its tensors counted from `base` on."""
        tensors = [(name, kind, shape, at - base, size) for name, kind, shape, at, size in self._tensors]
        return ["", *self._fields, tensors]


class RequestPlans:
    """The plans of one model, by header; and the latest ones, by what frontends have that goes with it."""

    def __init__(self) -> None:
        self._plans: dict[bytes, RequestPlan] = {}
        # By the identity of heads, with those, so that they keep it.
        self._by_head: dict[int, tuple[object, RequestPlan]] = {}

    def find(self, header: bytes, sizes: Sizes) -> RequestPlan | None:
        """The plan for a request with this header and contents of these sizes."""
        plan = self._plans.get(header)
        return plan if plan is not None and plan.sizes == sizes else None

    def find_known(self, head: object) -> RequestPlan | None:
        """The plan of the latest request with this very head, if its like can be found by the instances."""
        found = self._by_head.get(id(head))
        return None if found is None else found[1]

    def remember_known(self, head: object, plan: RequestPlan) -> None:
        """Have a plan found by the head of its request."""
        if len(self._by_head) >= PLANS_KEPT_MAX:
            self._by_head.clear()
        self._by_head[id(head)] = head, plan

    def remember(self, header: bytes, sizes: Sizes, job: Job, slot: RequestSlot, options: Any) -> None:
        """Keep a plan of `job`, whose tensors lie in `slot`: if every request with this header is as right as this one.

        Not so if a tensor is BYTES, whose contents have to be looked at; nor if one lies anywhere but in the slot: that
        is memory of this job alone, or a client's. A header that holds the id is not likely to come again.
        """
        if len(header) > HEADER_KEPT_BYTES_MAX or job.client is not None:
            return
        end = slot.offset + slot.size
        for _, datatype, _, at, size in job.wire[-1]:
            if datatype == "BYTES" or not slot.offset <= at <= at + size <= end:
                return
        if len(self._plans) >= PLANS_KEPT_MAX:
            self._plans.clear()
        self._plans[header] = RequestPlan(job, slot.offset, sizes, options)
