# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The messages between host and stub. (pure)

docs/reference/protocol.md has the grammar. Every message is a named tuple; on the wire it is `[tag, [field, ...]]`, in
which requests, responses and tensors are plain arrays, for speed: see request_codec.py and WireResponse.

The tensors of a call, and of its answer, may have their contents in place of an address, if those of all together
have at most INLINE_BYTES_MAX bytes.

An address is a region's number and an offset in it (see utils/addresses.py). Number 0 is the default region of the
direction: the model's request region from host to stub, the stub's response region from stub to host.

A *serial* is the number of one request at one stub. The requests of a batch have consecutive serials, and the batch is
identified by the first one.
"""

from __future__ import annotations

from typing import Any, Dict, Final, List, NamedTuple, Optional, Tuple, Type, Union

from pyruntime.utils.errors import Code
from pyruntime.utils.request_codec import TensorRef

# Increased whenever the meaning of a message changes: the host refuses the Hello of a stub with another version.
PROTOCOL_VERSION = 7

OK = -1
NO_SLOT = -1

# Up to this size, sending contents in a message is cheaper than referring to shared memory.
INLINE_BYTES_MAX = 8 << 10

# A response: its code, which is OK or that of an error; the error's message; the slot that its outputs lie in, or
# NO_SLOT; the outputs; and the parameters, a JSON object as text or "" for none. One that has arrived is a list of
# these items. A response that brings new states for its sequence has one item more: the slot that they lie in, and
# the states as tensors, by the names of their outputs.
StatelessResponse = Tuple[int, str, int, List[TensorRef], str]
StatefulResponse = Tuple[int, str, int, List[TensorRef], str, Tuple[int, List[TensorRef]]]
WireResponse = Union[StatelessResponse, StatefulResponse]
SLOT: Final = 2
TENSORS: Final = 3
STATES: Final = 5

# In place of a response in a Result: the request's sender answers it, or the model reschedules the request.
SENDER = None
RESCHEDULED = 0
WireOutcome = Union[WireResponse, int, None]


def encode_error(code: int, message: str) -> StatelessResponse:
    """A response that is an error."""
    return code, message, NO_SLOT, [], ""


class Hello(NamedTuple):
    """Stub to host, the first message: identifies the stub."""

    protocol: int
    pid: int
    python: str


class AutoComplete(NamedTuple):
    """Host to stub: import the model and call its auto_complete_config with `config` (JSON)."""

    location: Dict[str, str]
    config: str


class Completed(NamedTuple):
    """Stub to host: the completed configuration (JSON), or "" if the model has no auto_complete_config."""

    config: str


class Load(NamedTuple):
    """Host to stub: import the model and call initialize with `args`.

    `concurrency` is how many threads call execute; `requests_region` is the number of the model's request region.
    """

    location: Dict[str, str]
    args: Dict[str, str]
    concurrency: int
    requests_region: int


class Ready(NamedTuple):
    """Stub to host: initialize has returned; execute may be called.

    `checks`: the model has a method is_ready. `drops`: it has a method drop_sequences.
    """

    checks: bool
    drops: bool


class LoadFailed(NamedTuple):
    """Stub to host: importing, auto-completing or initialising the model failed. `reason` is for its author.

    `code` is one of utils/errors.Code.
    """

    reason: str
    code: int = int(Code.INTERNAL)


class Infer(NamedTuple):
    """Host to stub: execute this batch, whose first request has serial `batch`.

    `released` are response slots that the host has finished reading.
    """

    batch: int
    requests: List[Any]
    released: List[int]


class Release(NamedTuple):
    """Host to stub: response slots that the host has finished reading, if no Infer can carry them."""

    released: List[int]


class Result(NamedTuple):
    """Stub to host: execute has returned. One response for each request of the batch, in order, or SENDER or
    RESCHEDULED in its place.

    `retained` are the indexes of requests whose inputs the model keeps; the host keeps their memory until Retired.
    `start_ns` and `end_ns` enclose execute, on the monotonic clock that all processes share.
    """

    batch: int
    responses: List[WireOutcome]
    retained: List[int]
    start_ns: int
    end_ns: int


class Failed(NamedTuple):
    """Stub to host: execute failed as a whole; `message` goes to every client of the batch."""

    batch: int
    message: str
    retained: List[int]
    start_ns: int
    end_ns: int


class Retired(NamedTuple):
    """Stub to host: the serials of retained requests that the model has released."""

    requests: List[int]


class Log(NamedTuple):
    """Stub to host: a line for the server's log. `level` is a number of Python's logging module."""

    level: int
    message: str
    file: str
    line: int


class Stop(NamedTuple):
    """Host to stub: call finalize and exit."""


class Stopped(NamedTuple):
    """Stub to host: finalize has returned; the process ends now."""


class Respond(NamedTuple):
    """Stub to host: a sender's response, or nil for none; `final` if no other follows.

    `start_ns` is in the final one when execute was called, as in a Result; 0 if a Result says so, and in others.
    """

    serial: int
    response: Optional[WireResponse]
    final: bool
    start_ns: int = 0


class Credit(NamedTuple):
    """Host to stub: how many more responses clients have received, as `[serial, count]` pairs."""

    streams: List[List[int]]


class Requeue(NamedTuple):
    """Stub to host: these batches have not begun and will not, because the running one waits for something else."""

    batches: List[int]


class Call(NamedTuple):
    """Stub to host: call another model with `request`. `version` is -1 for any.

    `decoupled` if the caller accepts any number of responses. `waiting` is the batch that waits for the answer, 0 if
    there is none. `priority` is the level in the queue of the model, 0 for its default.
    """

    call: int
    model: str
    version: int
    request: List[Any]
    decoupled: bool
    waiting: int
    priority: int = 0


class Answer(NamedTuple):
    """Host to stub: a response to a call, or nil for none; `final` if no other follows.

    The response's slot is the number of a *hold*: its memory stays until a ReleaseHold names it.
    """

    call: int
    response: Optional[StatelessResponse]
    final: bool


class CancelCall(NamedTuple):
    """Stub to host: cancel this call. It is answered nevertheless."""

    call: int


class Consumed(NamedTuple):
    """Stub to host: how many more responses of a call the model has received, as `[call, count]` pairs."""

    calls: List[List[int]]


class ReleaseHold(NamedTuple):
    """Stub to host: holds whose memory no array uses any more."""

    holds: List[int]


class Unread(NamedTuple):
    """Host to stub: calls whose inputs no process reads any more."""

    calls: List[int]


class Unmap(NamedTuple):
    """Host to stub: regions to which no later message refers."""

    regions: List[int]


class MapGpu(NamedTuple):
    """Host to stub: later messages refer to the region `number`, `size` bytes on the GPU with this UUID.

    `handle` opens the memory, and `event` the event behind the copies of the process that writes there, b"" for none.
    It comes again, without the event, when that process has ended: then nobody may use the event any more.
    """

    number: int
    uuid: str
    handle: bytes
    event: bytes
    size: int


class UnmapGpu(NamedTuple):
    """Host to stub: no later message refers to this region on a GPU, or its memory is gone.

    The stub closes it, also if it leases it, and says so: see CLOSED_GPU.
    """

    number: int


# The methods by which a stub asks for memory on a GPU, gives it back, and says that it has closed what UnmapGpu named.
# LEASE_GPU has the UUID, the size in bytes, and the handle of the event that the stub records behind its copies. Its
# result is a list: the number of the region and of the GPU, the handle of the memory, and its size in bytes. The others
# have the number of the region, and no result.
LEASE_GPU: Final = "lease_gpu_memory"
# FETCH_GPU has the address of a tensor on a GPU, its size in bytes, and where the broker puts a copy: an offset in the
# stub's response region. It has no result.
FETCH_GPU: Final = "fetch_gpu_memory"
RETURN_GPU: Final = "return_gpu_memory"
CLOSED_GPU: Final = "closed_gpu_memory"

# The method by which an instance says what memory it uses from now on. Its arguments are lists of a kind of memory, a
# device, and a size in bytes; the statistics of the model have their sums.
REPORT_MEMORY: Final = "report_memory"

# The method by which an instance says that it has dropped an output, whose name is the only argument, because the
# configuration does not declare it.
REPORT_DROPPED: Final = "report_dropped_output"


class Ask(NamedTuple):
    """Stub to host: call any other function of the server; see stub/host.py for the methods."""

    question: int
    method: str
    arguments: List[Any]


class Reply(NamedTuple):
    """Host to stub: the answer to an Ask. `code` is -1, or an error code and then `value` is its message."""

    question: int
    code: int
    value: Any


class Measure(NamedTuple):
    """Stub to host: perform `operation` ("increment", "set" or "observe") on a metric of this stub."""

    metric: int
    operation: str
    value: float


class CheckReady(NamedTuple):
    """Host to stub: call the model's is_ready."""


class IsReady(NamedTuple):
    """Stub to host: the result of is_ready; `problem` is why it has no valid result, or ""."""

    ready: bool
    problem: str


class DropSequences(NamedTuple):
    """Host to stub: call the model's drop_sequences with these correlation ids, after the batches that came before."""

    ids: List[Union[int, str]]


Message = Union[
    Hello,
    AutoComplete,
    Completed,
    Load,
    Ready,
    LoadFailed,
    Infer,
    Release,
    Result,
    Failed,
    Retired,
    Log,
    Stop,
    Stopped,
    Respond,
    Credit,
    Requeue,
    Call,
    Answer,
    CancelCall,
    Consumed,
    ReleaseHold,
    Unread,
    Unmap,
    Ask,
    Reply,
    Measure,
    CheckReady,
    IsReady,
    DropSequences,
    MapGpu,
    UnmapGpu,
]

# The tag of a message is its index in this list, so new messages go to the end.
MESSAGES: Tuple[Type[Any], ...] = (
    Hello,
    AutoComplete,
    Completed,
    Load,
    Ready,
    LoadFailed,
    Infer,
    Release,
    Result,
    Failed,
    Retired,
    Log,
    Stop,
    Stopped,
    Respond,
    Credit,
    Requeue,
    Call,
    Answer,
    CancelCall,
    Consumed,
    ReleaseHold,
    Unread,
    Unmap,
    Ask,
    Reply,
    Measure,
    CheckReady,
    IsReady,
    DropSequences,
    MapGpu,
    UnmapGpu,
)

TAGS: Dict[Type[Any], int] = {message: tag for tag, message in enumerate(MESSAGES)}

# The types that a receiver requires of each field. Not derived from the annotations: that is slow, and Python 3.8
# cannot evaluate them here.
FIELDS: Tuple[Tuple[Any, ...], ...] = (
    (int, int, str),
    (dict, str),
    (str,),
    (dict, dict, int, int),
    (bool, bool),
    (str, int),
    (int, list, list),
    (list,),
    (int, list, list, int, int),
    (int, str, list, int, int),
    (list,),
    (int, str, str, int),
    (),
    (),
    (int, (list, type(None)), bool, int),
    (list,),
    (list,),
    (int, str, int, list, bool, int, int),
    (int, (list, type(None)), bool),
    (int,),
    (list,),
    (list,),
    (list,),
    (list,),
    (int, str, list),
    (int, int, object),
    (int, str, float),
    (),
    (bool, str),
    (list,),
    (int, str, bytes, bytes, int),
    (int,),
)
