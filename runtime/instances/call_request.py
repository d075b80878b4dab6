# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A call to another model, from the message that brings it to the job of its callee.

Nothing is copied on the way: the callee's stub reads the tensors where the caller's has put them. Most calls of a model
differ only in their tensors' contents, and then the callee need not be asked again whether they are right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Protocol

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.instances.codec import response_parameters
from pyruntime.runtime.regions import SharedRegion
from pyruntime.runtime.requests.types import InferRequest, InputTensor, Slot
from pyruntime.runtime.scheduling.job import Job, Respond
from pyruntime.runtime.scheduling.signature import signature_of
from pyruntime.utils.addresses import address, split
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import Call
from pyruntime.utils.request_codec import MEMORY_CPU, SEQUENCE_END, SEQUENCE_START, TensorRef, decode_request

# ValidatedSignatures of calls remembered for one model.
SIGNATURES_KEPT_MAX = 256


class ValidatedSignatures:
    """The calls to one model version that are known to be right, by all that they have in common."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable | None]] = {}
        # Rows and signature of a call of this kind; None if it has to be checked. A method of the dict, because each
        # call comes by here.
        self.find: Callable[[Hashable], tuple[int, Hashable | None] | None] = self._known.get

    def remember(self, kind: Hashable, rows: int, signature: Hashable | None) -> None:
        """All calls of this kind are right."""
        if len(self._known) >= SIGNATURES_KEPT_MAX:
            self._known.clear()
        self._known[kind] = (rows, signature)


class Version(Protocol):
    """What a call asks of its callee."""

    spec: ModelSpec
    validated: ValidatedSignatures


class CallRequest:
    """What a Call asks for, as its callee's stub is to read it; `regions` are those that its inputs lie in.

    `trace` is the context of the trace that the call belongs to, "" for none.
    """

    __slots__ = ("_id", "_message", "_options", "_parameters", "_tensors", "_views", "regions", "trace")

    def __init__(self, message: Call, region_of: Callable[[int], SharedRegion]) -> None:
        """Raises PeerError for what is no request, or refers to memory that is none of the caller's business."""
        self._message = message
        self._views: list[memoryview | bytes] = []
        regions: dict[int, SharedRegion] = {}
        id, options, tensors, trace_context = decode_request(message.request)
        try:
            placed: list[TensorRef] = []
            for name, datatype, shape, at, size, memory_kind, device_id in tensors:
                if type(name) is not str or datatype not in BY_NAME or type(shape) is not list or type(size) is not int:
                    raise PeerError("an input has no name, no datatype, no shape or no size")
                if memory_kind != MEMORY_CPU or device_id != 0:
                    raise PeerError(f"input '{name}' lies in memory of kind {memory_kind!r}, device {device_id!r}")
                for dim in shape:
                    if type(dim) is not int or dim < 0:
                        raise PeerError(f"input '{name}' has a dimension that is none")
                if isinstance(at, bytes):
                    if len(at) != size:
                        raise PeerError(f"input '{name}' is not as long as it says")
                    self._views.append(at)
                else:
                    number, offset = split(at)
                    region = regions.get(number) or region_of(number)
                    regions[number] = region
                    if not 0 <= offset <= offset + size <= region.limit:
                        raise PeerError(f"input '{name}' lies outside its region")
                    self._views.append(region.view[offset : offset + size])
                    if not number:
                        at = address(region.number, offset)
                placed.append((name, datatype, shape, at, size, MEMORY_CPU, 0))
        except (TypeError, ValueError) as exc:
            raise PeerError("a call whose request is none") from exc
        self._id = id
        self._options = options
        self._tensors = placed
        self._parameters = response_parameters(options.parameters)
        self.trace = trace_context
        self.regions = list(regions.values())

    def job(self, callee: Version, slots: list[Slot], respond: Respond) -> Job:
        """The job, if the callee can execute it. Raises InferenceError if not."""
        arrived_ns = time.monotonic_ns()
        options, tensors = self._options, self._tensors
        outputs, parameters = options.requested_outputs, options.parameters
        kind = (
            None if outputs is None else tuple(outputs),
            *[(name, datatype, size, *shape) for name, datatype, shape, _, size, _, _ in tensors],
        )
        known = callee.validated.find(kind) if not parameters else None
        if known is None:
            request = self._checked(callee.spec)
            known = request.batch_size, signature_of(callee.spec, request)
            shapes = [tensor.shape for tensor in request.inputs]
            if any(shape is not tensor[2] for shape, tensor in zip(shapes, tensors, strict=True)):
                tensors = [(*tensor[:2], shape, *tensor[3:]) for shape, tensor in zip(shapes, tensors, strict=True)]
            elif not parameters and not any(tensor[1] == "BYTES" for tensor in tensors):
                callee.validated.remember(kind, *known)
        job = Job(self._id, options, tensors, known[0], known[1], slots, respond, arrived_ns, self.trace)
        job.regions = self.regions
        return job

    def _checked(self, spec: ModelSpec) -> InferRequest:
        """The request, held against the callee's configuration. Raises InferenceError."""
        message = self._message
        options = self._options
        inputs = [
            InputTensor(name, datatype, shape, view, 0)
            for (name, datatype, shape, *_), view in zip(self._tensors, self._views, strict=True)
        ]
        request = InferRequest(
            message.model,
            message.version,
            self._id,
            inputs,
            options.requested_outputs,
            self._parameters,
            options.correlation_id,
            bool(options.flags & SEQUENCE_START),
            bool(options.flags & SEQUENCE_END),
            timeout_us=options.timeout_us,
        )
        check_request(spec, request)
        return request
