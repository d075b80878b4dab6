# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The layout of a request, and of the tensors in it, as messages and native code carry them. (pure)

A request is an array with the fields of WireRequest, in that order; a tensor is an array with those of TENSOR_FIELDS.
The only other definition of these orders is runtime/native/triton/request_layout.h, which a test compares with this.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Protocol, Sequence, Tuple, Union

from pyruntime.utils.errors import PeerError

# Bits of `flags`: the first and the last request of a sequence.
SEQUENCE_START, SEQUENCE_END = 1, 2

# Kinds of memory, by the numbers of TRITONSERVER_MemoryType. On a GPU, the device is the number of the server for it.
MEMORY_CPU, MEMORY_CPU_PINNED, MEMORY_GPU = range(3)

# A reference to a tensor, whose contents lie elsewhere: at an address (see utils/addresses.py), in memory of this kind
# and device. The tensors of a call, and of its answer, may have their contents in place of the address. A
# received reference is a list of the same items.
TensorRef = Tuple[str, str, List[int], Union[int, bytes], int, int, int]
TENSOR_FIELDS = ("name", "datatype", "shape", "address", "byte_size", "memory_kind", "device_id")

# Where an output goes: the address of the place, its size in bytes, its kind of memory and its device. Without a size,
# the output may stay on its GPU.
OutputPlaceRef = Tuple[int, int, int, int]

# In the place of `places` in a call: all of its outputs, whose names are never "", go to main memory.
IN_MAIN_MEMORY = {"": [0, 0, MEMORY_CPU, 0]}


class RequestOptions(NamedTuple):
    """The properties that many requests share: all but their ids and tensors. Shared objects are never changed.

    `timeout_us` is 0 for none, and `requested_outputs` None for all; `parameters` are a JSON object, or "" for none.
    """

    correlation_id: Union[int, str] = 0
    flags: int = 0
    timeout_us: int = 0
    requested_outputs: Optional[List[str]] = None
    parameters: str = ""


class WireRequest(NamedTuple):
    """A request as messages carry it: the id, the fields of RequestOptions, the inputs, and what belongs to few.

    What has arrived is a list of the same items, which its reader unpacks.

    `trace_context` is a JSON object, a number for a trace that no client knows of, or "" for none. `places` are those
    outputs that go to the memory of a client, or may stay on a GPU; None where the request uses no such memory at all.
    """

    id: str
    correlation_id: Union[int, str]
    flags: int
    timeout_us: int
    requested_outputs: Optional[List[str]]
    parameters: str
    tensors: List[TensorRef]
    trace_context: str = ""
    places: Optional[Dict[str, OutputPlaceRef]] = None


# Where the parameters and the places stand in a request that is encoded: native code reads another form of them.
PARAMETERS = WireRequest._fields.index("parameters")
PLACES = WireRequest._fields.index("places")


class AcceptedRequest(Protocol):
    """A request of the host's: what of it goes into a message."""

    id: str
    options: RequestOptions
    tensors: List[TensorRef]
    trace_context: str
    places: Optional[Dict[str, OutputPlaceRef]]


def encode_requests(requests: Sequence[AcceptedRequest]) -> List[List[object]]:
    """The requests of a batch for a message."""
    wires: List[List[object]] = []
    for each in requests:
        wires.append([each.id, *each.options, each.tensors, each.trace_context, each.places])
    return wires


def encode_request(
    id: str,
    options: Tuple[Union[int, str], int, int, Optional[List[str]], str],
    tensors: List[TensorRef],
    trace_context: str = "",
) -> List[object]:
    """One request for a call, or for native code. `options` are those of RequestOptions; there are no places."""
    return [id, *options, tensors, trace_context, None]


_STR = frozenset([str])


def decode_request(wire: Sequence[Any]) -> Tuple[str, RequestOptions, List[TensorRef], str, bool]:
    """The request of a call, out of a message of a stub's: its id, options, tensors and trace context.

    The last item is whether its outputs must be in main memory: see IN_MAIN_MEMORY.

    Its tensors are not checked. Raises PeerError.
    """
    if len(wire) != len(WireRequest._fields):
        raise PeerError("a request has another number of fields")
    id, correlation_id, flags, timeout_us, outputs, parameters, tensors, trace_context, places = wire
    if (
        type(id) is not str
        or type(correlation_id) not in (int, str)
        or type(flags) is not int
        or type(timeout_us) is not int
        or (outputs is not None and (type(outputs) is not list or not _STR.issuperset(map(type, outputs))))
        or type(parameters) is not str
        or type(tensors) is not list
        or type(trace_context) is not str
        or places not in (None, IN_MAIN_MEMORY)
    ):
        raise PeerError("a field of a request has another type")
    # As the constructor does, which costs a call.
    options = tuple.__new__(RequestOptions, (correlation_id, flags, timeout_us, outputs, parameters))
    return id, options, tensors, trace_context, places is not None
