# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts the message of a call to a job of the callee. Tensors are passed by reference.

No tensor is copied: the callee reads it where the caller has written it. Most calls of a model differ only in the
contents of their tensors; such a call is not validated again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

from pyruntime.runtime.config.inputs import check_request
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job, Respond
from pyruntime.runtime.execution.signature import signature_of
from pyruntime.runtime.regions import ClientRegion, GpuRegion, GrantedRegion, SharedRegion
from pyruntime.runtime.requests.parameters import parse_parameters
from pyruntime.runtime.requests.types import ClientContents, InferRequest, InputTensor, OnGpu, Parameter, Slot
from pyruntime.utils.addresses import address, split
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import PeerError
from pyruntime.utils.messages import Call
from pyruntime.utils.request_codec import (
    MEMORY_CPU,
    MEMORY_GPU,
    SEQUENCE_END,
    SEQUENCE_START,
    OutputPlaceRef,
    RequestOptions,
    TensorRef,
    decode_request,
)

# The number of signatures that are kept for one model.
SIGNATURES_KEPT_MAX = 256


class ValidatedSignatures:
    """The signatures of valid calls to one model version: all of a call except its id and its contents."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[int, Hashable | None]] = {}
        # Rows and batch signature of a call of this kind; None if it must be validated. The dict's own method, because
        # every call uses it.
        self.find: Callable[[Hashable], tuple[int, Hashable | None] | None] = self._known.get

    def remember(self, kind: Hashable, rows: int, signature: Hashable | None) -> None:
        """Record that all calls of this kind are valid."""
        if len(self._known) >= SIGNATURES_KEPT_MAX:
            self._known.clear()
        self._known[kind] = (rows, signature)


class Version(Protocol):
    """The part of a Callee that a request uses."""

    spec: ModelSpec
    validated: ValidatedSignatures


class CallRequest(NamedTuple):
    """The request of a call: `tensors` refer to the inputs, in `regions` or in the references themselves.

    `parameters` are the decoded parameters of `options`. `trace` is the context of the trace that the call belongs to,
    "" for none. `priority` is the level in the callee's queue, 0 for its default. `places` are the outputs that may
    stay on a GPU: None as long as the callee has not been asked, {} if the caller wants all of them in main memory.
    `on_gpu` says whether a caller's inputs lie on GPUs, where the callee may not read them.
    """

    id: str
    options: RequestOptions
    parameters: dict[str, Parameter]
    tensors: list[TensorRef]
    regions: Sequence[GrantedRegion]
    trace: str = ""
    priority: int = 0
    places: dict[str, OutputPlaceRef] | None = None
    on_gpu: bool = False

    def make_job(self, callee: Version, slots: list[Slot], respond: Respond) -> Job:
        """See model_call.OutgoingRequest."""
        arrived_ns = time.monotonic_ns()
        id, options, _, tensors, regions, trace, priority, places, _ = self
        outputs, parameters = options.requested_outputs, options.parameters
        kind: list[Hashable] = [None if outputs is None else tuple(outputs)]
        for name, datatype, shape, _, size, _, _ in tensors:
            # Names are strings and dimensions are not, so that no two kinds are the same list.
            kind += (name, datatype, size)
            kind += shape
        signature = tuple(kind)
        known = callee.validated.find(signature) if not parameters else None
        if known is None:
            request = self._checked(callee.spec)
            known = request.batch_size, signature_of(callee.spec, ((each.name, each.shape) for each in request.inputs))
            shapes = [tensor.shape for tensor in request.inputs]
            if any(shape is not tensor[2] for shape, tensor in zip(shapes, tensors, strict=True)):
                tensors = [(*tensor[:2], shape, *tensor[3:]) for shape, tensor in zip(shapes, tensors, strict=True)]
            elif not parameters and not any(tensor[1] == "BYTES" for tensor in tensors):
                callee.validated.remember(signature, *known)
        job = Job(id, options, tensors, known[0], known[1], slots, respond, arrived_ns, trace, places or None)
        job.regions = regions
        job.priority = priority
        job.is_call = True
        return job

    def _checked(self, spec: ModelSpec) -> InferRequest:
        """The request, validated against the callee's configuration. Raises InferenceError."""
        options = self.options
        regions = {region.number: region for region in self.regions}
        inputs = []
        for name, datatype, shape, at, size, _, _ in self.tensors:
            if isinstance(at, bytes):
                inputs.append(InputTensor(name, datatype, shape, at, 0))
            else:
                number, offset = split(at)
                region = regions[number]
                if isinstance(region, GpuRegion):
                    inputs.append(InputTensor(name, datatype, shape, b"", at, gpu=OnGpu(region, size)))
                elif isinstance(region, ClientRegion):
                    inputs.append(InputTensor(name, datatype, shape, b"", at, ClientContents(region, at, size)))
                else:
                    inputs.append(InputTensor(name, datatype, shape, region.view[offset : offset + size], 0))
        request = InferRequest(
            spec.name,
            -1,
            self.id,
            inputs,
            options.requested_outputs,
            self.parameters,
            options.correlation_id,
            bool(options.flags & SEQUENCE_START),
            bool(options.flags & SEQUENCE_END),
            timeout_us=options.timeout_us,
        )
        check_request(spec, request)
        return request


_NO_PARAMETERS: dict[str, Parameter] = {}
_NO_PLACES: dict[str, OutputPlaceRef] = {}


def read_call(message: Call, region_of: Callable[[int], SharedRegion | GpuRegion]) -> CallRequest:
    """Decode the request in a message from a stub. `region_of` finds a region by the number that the stub uses.

    Raises PeerError if the request is not valid, or refers to memory that the stub has no access to.
    """
    regions: dict[int, SharedRegion | GpuRegion] = {}
    id, options, refs, trace, in_main_memory = decode_request(message.request)
    tensors: list[TensorRef] = []
    on_gpu = False
    try:
        for name, datatype, shape, at, size, memory_kind, device_id in refs:
            if type(name) is not str or datatype not in BY_NAME or type(shape) is not list or type(size) is not int:
                raise PeerError("an input has no name, no datatype, no shape or no size")
            for dim in shape:
                if type(dim) is not int or dim < 0:
                    raise PeerError(f"input '{name}' has the dimension {dim!r}")
            if isinstance(at, bytes):
                if len(at) != size:
                    raise PeerError(f"input '{name}' is not as long as it says")
            else:
                number, offset = split(at)
                region = regions.get(number) or region_of(number)
                regions[number] = region
                if not 0 <= offset <= offset + size <= region.limit:
                    raise PeerError(f"input '{name}' lies outside its region")
                if not number:
                    at = address(region.number, offset)
                if type(region) is GpuRegion:
                    _check_on_gpu(name, datatype, region, memory_kind, device_id)
                    on_gpu = True
                    tensors.append((name, datatype, shape, at, size, MEMORY_GPU, device_id))
                    continue
            if memory_kind != MEMORY_CPU or device_id != 0:
                raise PeerError(f"input '{name}' lies in memory of kind {memory_kind!r}, device {device_id!r}")
            tensors.append((name, datatype, shape, at, size, MEMORY_CPU, 0))
    except (TypeError, ValueError) as exc:
        raise PeerError("a call whose request cannot be read") from exc
    parameters = parse_parameters(options.parameters) if options.parameters else _NO_PARAMETERS
    # As CallRequest(...) does, which costs a call.
    places = _NO_PLACES if in_main_memory else None
    fields = id, options, parameters, tensors, list(regions.values()), trace, message.priority, places, on_gpu
    return tuple.__new__(CallRequest, fields)


def _check_on_gpu(name: str, datatype: str, region: GpuRegion, memory_kind: object, device_id: object) -> None:
    """Raise PeerError if a tensor cannot lie in this region."""
    if memory_kind != MEMORY_GPU or device_id != region.gpu.ordinal or datatype == "BYTES":
        raise PeerError(f"input '{name}' lies on GPU {region.gpu.ordinal}, and says otherwise, or is of BYTES")
