# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Converts between the host's values and the arrays in messages (see utils/messages.py). (pure)

Messages of a stub are not trusted: a model can write anything into its own process. Invalid content raises PeerError,
for which the stub is killed; no message makes the host read outside that stub's own region. Arrays in messages have the
type Any, because they are checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from pyruntime.runtime.config.inputs import client_shape
from pyruntime.runtime.config.spec import ModelSpec
from pyruntime.runtime.execution.job import Job
from pyruntime.runtime.execution.states import StateMemory
from pyruntime.runtime.memory.client_use import ClientUse
from pyruntime.runtime.native.plain import OutputReader
from pyruntime.runtime.regions import GpuRegion, SharedRegion
from pyruntime.runtime.requests.parameters import parse_parameters
from pyruntime.runtime.requests.types import InferResponse, KeptOutputs, OnGpu, OutputPlace, OutputTensor, Parameter
from pyruntime.utils.addresses import address, split
from pyruntime.utils.dtypes import BY_NAME
from pyruntime.utils.errors import Code, InferenceError, PeerError
from pyruntime.utils.messages import OK, RESCHEDULED, SENDER, STATES, StatelessResponse, encode_error
from pyruntime.utils.request_codec import MEMORY_CPU, MEMORY_GPU, OutputPlaceRef, TensorRef

# The latest responses of a stub whose outputs are kept, and the most outputs, and characters and dimensions of them, of
# one that is: some MiB for one stub at worst.
KEPT_RESPONSES_MAX = 256
KEPT_OUTPUTS_MAX = 32
KEPT_FIELDS_MAX = 1024

# Outputs, and their size in bytes.
_Outputs = tuple[list[OutputTensor], int]
# The outcome of one request of a batch: a response, an error, or a value in place of both (see utils/messages.py).
Outcome = InferResponse | InferenceError | int | None


def _unchecked(outputs: Sequence[OutputTensor]) -> None:
    """Take any outputs, such as states, which have their own checks."""


def _not_leased(number: int) -> GpuRegion:
    raise PeerError(f"region {number} is not memory on a GPU that the stub leases")


class ResponseReader:
    """Decodes responses, whose tensors lie in one stub's response region.

    Native code reads outputs that are as the configuration says. A model often answers with the same shapes, and its
    stub uses the same few slots. So many responses are described as an earlier one was, and have the very same outputs:
    nobody may change them.
    """

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        region: SharedRegion,
        release: Callable[[int, int], None],
        leased: Callable[[int], GpuRegion] = _not_leased,
        check: Callable[[Sequence[OutputTensor]], None] = _unchecked,
    ) -> None:
        """`release` is called with the slot of a response, and the size of its tensors, when it is released.

        `leased` finds memory on a GPU, in which the stub writes, by its number. It raises PeerError. `check` is called
        with outputs that may be otherwise than the configuration says.
        """
        self._check = check
        self._leased = leased
        self._spec = spec
        self._version = version
        self._release = release
        self._regions = (region,)
        self._region = region.view
        self._limit = region.limit
        self._base = address(region.number, 0)
        self._reshapes = any(output.reshape is not None for output in spec.outputs.values())
        # Reads outputs that are as the configuration says, and nothing special.
        self._read_plain = _plain_reader(spec, region)
        # By slot: a description, the outputs that it describes, which are kept once it has come again, and their size.
        self._kept: dict[int, tuple[list[Any], list[OutputTensor], int]] = {}

    def forget(self) -> None:
        """Keep no views of the region, which is closed."""
        self._kept.clear()

    def responses(self, batch: Sequence[Job], responses: Sequence[object]) -> list[Outcome]:
        """The outcome of each job. Raises PeerError if any of them is invalid."""
        if len(batch) != len(responses):
            raise PeerError("responses that do not match the batch")
        read = self.response
        outcomes = []
        for job, wire in zip(batch, responses):  # noqa: B905 - they are equal in number, and strict costs time
            outcomes.append(read(job, wire) if type(wire) is list else _no_response(wire))
        return outcomes

    def response(self, job: Job, wire: Sequence[Any]) -> InferResponse | InferenceError:
        """The response to a job. Raises PeerError."""
        try:
            code, text, slot, tensors, parameters = wire
            if code != OK:
                return InferenceError(str(text), Code(code))
            if type(slot) is not int:
                raise PeerError(f"a response lies in slot {slot!r}, which is no integer")
            kept = self._kept.get(slot)
            outputs: list[OutputTensor]
            regions: Sequence[SharedRegion | GpuRegion] = self._regions
            if kept is not None and kept[0] == tensors and job.client is None:
                _, outputs, size = kept
                if type(outputs) is not KeptOutputs:
                    outputs = self._keep(slot, tensors, outputs, size)
            elif job.client is None and not job.places:
                plain = self._read_plain(tensors)
                is_plain = plain is not None
                outputs, size = plain or self.outputs(tensors)
                if not is_plain:
                    self._check(outputs)
                if len(outputs) <= KEPT_OUTPUTS_MAX and (is_plain or _is_short(outputs)):
                    if len(self._kept) >= KEPT_RESPONSES_MAX:
                        self._kept.clear()
                    self._kept[slot] = tensors, outputs, size
            else:
                outputs, size = self.outputs(tensors, job.client, job.places)
                self._check(outputs)
                if job.client is None:
                    regions = self._regions_of(outputs)
        except (TypeError, ValueError) as exc:
            raise PeerError("a response that is none") from exc
        return InferResponse(
            self._spec.name,
            self._version,
            job.id,
            outputs,
            parse_parameters(parameters) if parameters else _NO_PARAMETERS,
            partial(self._release, slot, size) if slot >= 0 else _nothing,
            _nothing,
            regions,  # a keyword costs more than all other arguments
        )

    def _regions_of(self, outputs: Sequence[OutputTensor]) -> Sequence[SharedRegion | GpuRegion]:
        """The regions of outputs that may lie on a GPU, in regions of their own."""
        return *self._regions, *{output.place.memory for output in outputs if isinstance(output.place, OnGpu)}

    def _keep(self, slot: int, tensors: list[Any], outputs: list[OutputTensor], size: int) -> list[OutputTensor]:
        """Keep outputs whose description has come again. Returns the same ones."""
        kept = KeptOutputs(outputs)
        self._kept[slot] = tensors, kept, size
        return kept

    def outputs(
        self,
        tensors: list[Any],
        client: ClientUse | None = None,
        places: Mapping[str, OutputPlaceRef] | None = None,
    ) -> tuple[list[OutputTensor], int]:
        """The outputs that `tensors` describe, their data views of the region; and their size in bytes.

        `client` says which of them may lie in a client's memory, `places` which of them on a GPU. Raises PeerError.
        """
        region = self._region
        limit = self._limit
        base = self._base
        outputs = []
        total = 0
        try:
            for name, datatype, shape, offset, size, memory_kind, device_id in tensors:
                place: OutputPlace | OnGpu | None = None
                if memory_kind != MEMORY_CPU or device_id != 0:
                    place = self._on_gpu(places, name, offset, size, (memory_kind, device_id))
                    if datatype not in BY_NAME or datatype == "BYTES":
                        raise PeerError(f"output '{name}' lies on a GPU, and has the datatype {datatype!r}")
                elif datatype not in BY_NAME or not 0 <= offset <= offset + size <= limit:
                    place = _place_of(client, name, offset, size)
                    if place is None or datatype not in BY_NAME:
                        raise PeerError(f"output '{name}' lies outside the response region, or has no datatype")
                if type(name) is not str or type(shape) is not list:
                    raise PeerError("an output has no name or no shape")
                for dim in shape:
                    if type(dim) is not int:
                        raise PeerError(f"output '{name}' has a dimension that is no integer")
                if self._reshapes:
                    shape = client_shape(self._spec, name, shape)
                if place is not None:
                    at, size = (offset, size) if type(place) is OnGpu else (0, 0)
                    outputs.append(OutputTensor(name, datatype, shape, b"", at, place))
                    total += size
                    continue
                total += size
                outputs.append(OutputTensor(name, datatype, shape, region[offset : offset + size], base + offset))
        except (TypeError, ValueError) as exc:
            raise PeerError("an output is not [name, datatype, shape, offset, size, memory kind, device]") from exc
        return outputs, total

    def _on_gpu(
        self, places: Mapping[str, OutputPlaceRef] | None, name: object, at: int, size: int, where: tuple[object, ...]
    ) -> OnGpu:
        """The place of an output on a GPU. Raises PeerError if it may not lie there."""
        place = None if places is None or type(name) is not str else places.get(name)
        if place is None or place[2:] != where or where[0] != MEMORY_GPU:
            raise PeerError(f"output '{name}' lies in memory of kind {where[0]!r}, device {where[1]!r}")
        number, offset = split(at)
        region = self._leased(number)
        if not 0 <= offset <= offset + size <= region.limit:
            raise PeerError(f"output '{name}' lies outside its region on a GPU")
        return OnGpu(region, size)


def _plain_reader(spec: ModelSpec, region: SharedRegion) -> Callable[[list[Any]], _Outputs | None]:
    """A function that reads the plain outputs of responses, and returns None for all others."""
    if any(output.reshape is not None for output in spec.outputs.values()):
        return _nothing_plain
    outputs = [(name, tensor.datatype, tensor.shape) for name, tensor in spec.outputs.items()]
    try:
        return OutputReader(outputs, region.view, region.limit, address(region.number, 0), OutputTensor).read
    except ValueError:  # they are too many for native code
        return _nothing_plain


def _nothing_plain(tensors: list[Any]) -> None:
    """No response is plain."""


def _is_short(outputs: Sequence[OutputTensor]) -> bool:
    """Whether these outputs may be kept. Plain ones always may: they have the names of the configuration."""
    fields = 0
    for output in outputs:
        fields += len(output.name) + len(output.shape)
    return fields <= KEPT_FIELDS_MAX


class StateReader(ResponseReader):
    """Also takes over the states that a model returns for the sequence of a request.

    They lie in the same region as the outputs, in a slot of their own, which is kept as long as they are the states; or
    on the stub's GPU, in memory that goes with that slot.
    """

    def __init__(
        self,
        spec: ModelSpec,
        version: int,
        region: SharedRegion,
        release: Callable[[int, int], None],
        leased: Callable[[int], GpuRegion] = _not_leased,
        check: Callable[[Sequence[OutputTensor]], None] = _unchecked,
        gpu: int | None = None,
    ) -> None:
        """`gpu` is the number of the GPU on which states may lie."""
        super().__init__(spec, version, region, release, leased, check)
        names = () if spec.sequence_batching is None else [state.output_name for state in spec.sequence_batching.states]
        self._gpu = gpu or 0
        self._places = None if gpu is None else dict.fromkeys(names, (0, 0, MEMORY_GPU, gpu))
        # The shapes of states are the model's, even where clients see an output of that name in another shape.
        self._states = ResponseReader(replace(spec, outputs={}), version, region, release, leased)

    def response(self, job: Job, wire: Sequence[Any]) -> InferResponse | InferenceError:
        """See ResponseReader. A state that is not as the configuration says makes an error of the response."""
        if len(wire) != STATES + 1:
            return super().response(job, wire)
        outcome, states = super().response(job, wire[:STATES]), wire[STATES]
        if type(states) is not list or len(states) != 2 or type(states[0]) is not int:
            raise PeerError(f"{states!r} stand in place of the states of a sequence")
        slot, tensors = states
        outputs, size = self._states.outputs(tensors, None, self._places)
        on_gpu = {each.name: each.place for each in outputs if isinstance(each.place, OnGpu)}
        free = partial(self._release, slot, size) if slot >= 0 else _nothing
        memory = StateMemory(self._regions[0], free, {place.memory for place in on_gpu.values()})
        try:
            if job.states is not None and type(outcome) is InferResponse:
                job.states.update_all(
                    [
                        (
                            each.name,
                            each.datatype,
                            each.shape,
                            each.address,
                            on_gpu[each.name].byte_size if each.name in on_gpu else len(each.data),
                        )
                        for each in outputs
                    ],
                    memory,
                    dict.fromkeys(on_gpu, self._gpu),
                )
        except InferenceError as refused:
            assert type(outcome) is InferResponse  # errors update nothing
            outcome.release()
            return InferenceError(f"model '{self._spec.name}' returned a wrong state: {refused.message}")
        finally:
            memory.free()
        return outcome


def _place_of(client: ClientUse | None, name: str, at: int, size: int) -> OutputPlace | None:
    """The place of an output in a client's memory, None if it may not lie there."""
    place = None if client is None else client.places.get(name)
    if place is None or at != place.contents.address or not 0 <= size <= place.byte_size:
        return None
    return place.filled(size)


_NO_PARAMETERS: dict[str, Parameter] = {}


def _nothing() -> None:
    """Release a response without memory."""


_NOT_RESCHEDULABLE = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
    "such a flag."
)


def as_outcome(outcome: object) -> InferResponse | InferenceError:
    """The outcome as a client gets it, where a request cannot be executed again."""
    if isinstance(outcome, (InferResponse, InferenceError)):
        return outcome
    return not_reschedulable()


def not_reschedulable() -> InferenceError:
    """The error of a request that the model wants to execute again and may not."""
    return InferenceError(_NOT_RESCHEDULABLE, Code.INVALID_ARG)


def _no_response(wire: object) -> int | None:
    if wire is SENDER or (type(wire) is int and wire == RESCHEDULED):
        return wire
    raise PeerError(f"{wire!r} stands in place of a response")


def response_wire(response: InferResponse, hold: int, inline: bool = False) -> StatelessResponse:
    """The response to a call, as the caller's stub reads it. `hold` is the number of its memory, or NO_SLOT.

    With `inline` the message itself has the contents.
    """
    tensors: list[TensorRef] = []
    for tensor in response.outputs:
        data = tensor.data
        at = bytes(data) if inline else tensor.address
        tensors.append((tensor.name, tensor.datatype, tensor.shape, at, len(data), MEMORY_CPU, 0))
    return OK, "", hold, tensors, orjson.dumps(response.parameters).decode() if response.parameters else ""


def response_wire_on_gpus(response: InferResponse, hold: int) -> StatelessResponse:
    """As `response_wire`, for a response with outputs that may lie on a GPU."""
    code, text, hold, tensors, parameters = response_wire(response, hold)
    for index, output in enumerate(response.outputs):
        if isinstance(output.place, OnGpu):
            place = output.place.byte_size, MEMORY_GPU, output.place.memory.gpu.ordinal
            tensors[index] = (output.name, output.datatype, output.shape, output.address, *place)
    return code, text, hold, tensors, parameters


def error_wire(error: InferenceError) -> StatelessResponse:
    """The failure of a call, as the caller's stub reads it."""
    return encode_error(int(error.code), error.message)
