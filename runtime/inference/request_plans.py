# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that differ only in their tensors' contents, decoded and checked once. (pure)

They are for what native code does not read whole (see plain_requests.py), and for C++ backends in the server, which
recognise requests by them. Requests over gRPC have none.

Most requests of a client have the same JSON header except for the id and the sequence. Unless a tensor is BYTES, the
validity of a request depends only on that and on the sizes of its contents. So a model keeps, for each header, a plan:
the request as the stub reads it, with the offsets of its tensors from where the contents begin in the slot.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, cast

from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.utils.request_codec import RequestOptions, TensorRef, encode_request

# The number of plans that are kept for one model, and the longest header of one: half a MiB in total.
PLANS_KEPT_MAX = 256
HEADER_KEPT_BYTES_MAX = 2048

# The common part of requests with the same plan: an HTTP header and the size of the contents behind it, and what else
# document_key.py says. Sizes are in bytes.
PlanKey = tuple[bytes, int] | tuple[bytes, int, int]


class RequestPlan:
    """The job for a header, except for the place of its tensors. `options` are the frontend's own.

    `known` is the KnownRequest with which the model's instances recognise such requests; None before they are asked,
    False if they recognise none.
    """

    __slots__ = ("_options", "_priority", "_signature", "_tensors", "known", "options", "rows")

    def __init__(self, job: Job, base: int, options: object) -> None:
        self._options = job.options
        self._tensors = _counted_from(base, cast("list[_Placed]", job.tensors))
        self._priority = job.priority
        self.rows = job.rows
        self._signature: Hashable | None = job.signature
        # Any: each frontend knows the type of its options, and `known` of a plan from `find_known` is a KnownRequest.
        self.options: Any = options
        self.known: Any = None

    def job(
        self,
        slot: RequestSlot,
        respond: Respond,
        now_ns: int,
        id: str = "",
        lead: int = 0,
        sequence: tuple[int, int] | None = None,
    ) -> Job:
        """The job of a request that has arrived now, with its tensors behind the first `lead` bytes of `slot`.

        `sequence` are its correlation id and flags, None if all requests with this plan have the same.
        """
        base, options = slot.offset + lead, self._options
        if sequence is not None:
            # As their constructor does, which costs a call.
            options = tuple.__new__(RequestOptions, sequence + options[2:])
        tensors: list[TensorRef] = []
        for name, datatype, shape, at, size, memory_kind, device_id in self._tensors:  # faster than a comprehension
            tensors.append((name, datatype, shape, base + at, size, memory_kind, device_id))
        job = Job(id, options, tensors, self.rows, self._signature, [slot], respond, now_ns)
        job.priority = self._priority
        return job

    def pattern(self) -> list[object]:
        """The request as native code reads it, without an id, the offsets of its tensors from where contents begin."""
        return encode_request("", self._options, [*self._tensors])


# A TensorRef whose contents lie at an address.
_Placed = tuple[str, str, list[int], int, int, int, int]


def _counted_from(base: int, tensors: list[_Placed]) -> list[_Placed]:
    """The same references, their addresses counted from `base`."""
    return [
        (name, datatype, shape, at - base, size, memory_kind, device_id)
        for name, datatype, shape, at, size, memory_kind, device_id in tensors
    ]


class RequestPlans:
    """The plans of one model. `find` gives the plan for a key, None if there is none.

    The plans of known requests are also found by the frontend's object for the request's head.
    """

    def __init__(self) -> None:
        self._plans: dict[PlanKey, RequestPlan] = {}
        # The dict's own method, because every request calls it.
        self.find = self._plans.get
        # By the identities of heads. The values contain the heads, so that no identity is reused.
        self._by_head: dict[int, tuple[object, RequestPlan]] = {}

    def find_known(self, head: object) -> RequestPlan | None:
        """The plan of the known requests with this very head object, None if there is none."""
        found = self._by_head.get(id(head))
        return None if found is None else found[1]

    def remember_known(self, head: object, plan: RequestPlan) -> None:
        """Have `find_known` find a plan by the head of its request."""
        if len(self._by_head) >= PLANS_KEPT_MAX:
            self._by_head.clear()
        self._by_head[id(head)] = head, plan

    def remember(self, key: PlanKey, job: Job, slot: RequestSlot, options: object, lead: int = 0) -> None:
        """Keep a plan of `job`, whose tensors lie in `slot`, unless another request with this key may be invalid.

        The first `lead` bytes of the slot are no contents, but what the key stands for.

        That is possible if a tensor is BYTES, whose contents must be checked each time, or lies outside the slot: in
        memory of this job alone, or of a client. Long headers are not kept either.
        """
        if len(key[0]) > HEADER_KEPT_BYTES_MAX or job.client is not None:
            return
        end = slot.offset + slot.size
        for _, datatype, _, at, size, _, _ in job.tensors:
            if datatype == "BYTES" or isinstance(at, bytes) or not slot.offset <= at <= at + size <= end:
                return
        if len(self._plans) >= PLANS_KEPT_MAX:
            self._plans.clear()
        self._plans[key] = RequestPlan(job, slot.offset + lead, options)
