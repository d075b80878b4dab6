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
from typing import Any, cast

from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.scheduling.job import Job, Respond
from pyruntime.utils.request_codec import TensorRef, encode_request

# Headers remembered for one model, and how long one may be: half a MiB of them.
PLANS_KEPT_MAX = 256
HEADER_KEPT_BYTES_MAX = 2048

# What requests must have in common to follow the same plan: a header of HTTP and the size of the body, header included;
# or the key of a gRPC message and the sizes of the contents of its tensors. Sizes are in bytes.
PlanKey = tuple[bytes, int | tuple[int, ...]]


class RequestPlan:
    """The job that a header leads to, but for the place of its tensors. `options` are the frontend's own.

    `known` is what the model's instances recognise such requests by, None before they were asked, False for nothing.
    """

    __slots__ = ("_options", "_signature", "_tensors", "known", "options", "rows")

    def __init__(self, job: Job, base: int, options: object) -> None:
        self._options = job.options
        self._tensors = _counted_from(base, cast("list[_Placed]", job.tensors))
        self.rows = job.rows
        self._signature: Hashable | None = job.signature
        # Any: a frontend knows its own options, and who finds a plan by `find_known` knows that `known` is not None.
        self.options: Any = options
        self.known: Any = None

    def job(self, slot: RequestSlot, respond: Respond, now_ns: int, id: str = "") -> Job:
        """The job of a request that arrives now and whose tensors lie in `slot`."""
        base = slot.offset
        tensors: list[TensorRef] = []
        for name, datatype, shape, at, size, memory_kind, device_id in self._tensors:  # a comprehension costs a call
            tensors.append((name, datatype, shape, base + at, size, memory_kind, device_id))
        return Job(id, self._options, tensors, self.rows, self._signature, [slot], respond, now_ns)

    def pattern(self, base: int) -> list[object]:
        """The request as native code reads it, without an id, its tensors counted from `base` on."""
        return encode_request("", self._options, [*_counted_from(base, self._tensors)])


# As a TensorRef, whose contents always lie at an address.
_Placed = tuple[str, str, list[int], int, int, int, int]


def _counted_from(base: int, tensors: list[_Placed]) -> list[_Placed]:
    """The same references, their addresses counted from `base` on."""
    return [
        (name, datatype, shape, at - base, size, memory_kind, device_id)
        for name, datatype, shape, at, size, memory_kind, device_id in tensors
    ]


class RequestPlans:
    """The plans of one model. `find` gives the plan for a key, None if there is none.

    The latest plans are also found by what a frontend has made of the request's head.
    """

    def __init__(self) -> None:
        self._plans: dict[PlanKey, RequestPlan] = {}
        # No method of ours: it is called for every request.
        self.find = self._plans.get
        # By the identity of heads, with those, so that they keep it.
        self._by_head: dict[int, tuple[object, RequestPlan]] = {}

    def find_known(self, head: object) -> RequestPlan | None:
        """The plan of the latest request with this very head, if its like can be found by the instances."""
        found = self._by_head.get(id(head))
        return None if found is None else found[1]

    def remember_known(self, head: object, plan: RequestPlan) -> None:
        """Have a plan found by the head of its request."""
        if len(self._by_head) >= PLANS_KEPT_MAX:
            self._by_head.clear()
        self._by_head[id(head)] = head, plan

    def remember(self, key: PlanKey, job: Job, slot: RequestSlot, options: object) -> None:
        """Keep a plan of `job`, whose tensors lie in `slot`, unless another request with this key may be wrong.

        That is so if a tensor is BYTES, whose contents must be checked each time, or lies outside of the slot: in
        memory of this job alone, or of a client. A header that holds the id is not likely to come again.
        """
        if len(key[0]) > HEADER_KEPT_BYTES_MAX or job.client is not None:
            return
        end = slot.offset + slot.size
        for _, datatype, _, at, size, _, _ in job.tensors:
            if datatype == "BYTES" or isinstance(at, bytes) or not slot.offset <= at <= at + size <= end:
                return
        if len(self._plans) >= PLANS_KEPT_MAX:
            self._plans.clear()
        self._plans[key] = RequestPlan(job, slot.offset, options)
