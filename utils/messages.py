# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What host and stub say to each other. (pure)

docs/reference/protocol.md has the grammar. Every message is a named tuple; on the wire it is `[tag, [field, ...]]`, in
which requests, responses and tensors are plain arrays, for speed: see request_codec.py.

    response := [code:int message:str slot:int tensors:[tensor...] parameters:str]   code -1 is success, slot -1 is none

`parameters` is a JSON object as text, or "" for none.

The tensors of a call, and of its answer, may carry their contents in place of an address, where those of all together
have no more than INLINE_BYTES_MAX bytes.

An address is a region's number and an offset in it (see utils/addresses.py). Number 0 is the region of the direction
that the message goes in: the model's request region from host to stub, the stub's response region from stub to host.

A *serial* is the number of one request with one stub. The requests of a batch have consecutive ones, so a batch goes by
the serial of its first request.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Type, Union

# Raised whenever the meaning of a message changes: a stub of another version is refused in its Hello.
PROTOCOL_VERSION = 4

OK = -1
NO_SLOT = -1

# Up to here contents are cheaper to send along than to point to.
INLINE_BYTES_MAX = 8 << 10

# In place of a response in a Result: the request is, or will be, answered through its sender; or it wants to be
# executed again.
SENDER = None
RESCHEDULED = 0


class Hello(NamedTuple):
    """Stub to host, first of all: who speaks."""

    protocol: int
    pid: int
    python: str


class AutoComplete(NamedTuple):
    """Host to stub: import the model and let its auto_complete_config complete `config` (JSON)."""

    location: Dict[str, str]
    config: str


class Completed(NamedTuple):
    """Stub to host: the completed configuration (JSON), or "" when the model has no auto_complete_config."""

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
    """Stub to host: initialize has returned; execute may be called. `checks`: the model has a method is_ready."""

    checks: bool


class LoadFailed(NamedTuple):
    """Stub to host: importing, auto-completing or initialising the model failed. `reason` is for its author."""

    reason: str


class Infer(NamedTuple):
    """Host to stub: execute this batch, whose first request has serial `batch`.

    `released` are response slots that the host has read to the end.
    """

    batch: int
    requests: List[Any]
    released: List[int]


class Release(NamedTuple):
    """Host to stub: response slots read to the end, when there is no Infer to carry them."""

    released: List[int]


class Result(NamedTuple):
    """Stub to host: execute has returned. One response for each request of the batch, in order, or SENDER or
    RESCHEDULED in its place.

    `retained` are indexes of requests whose inputs the model still holds on to; their memory stays until Retired.
    `start_ns` and `end_ns` enclose execute, on the monotonic clock that all processes share.
    """

    batch: int
    responses: List[Any]
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
    """Stub to host: serials of requests that were retained and are held no longer."""

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
    """Stub to host: a response that a sender sent, or nil for none; `final` if no other follows."""

    serial: int
    response: Optional[List[Any]]
    final: bool


class Credit(NamedTuple):
    """Host to stub: how many more responses of a request were taken by its client, as `[serial, count]` pairs."""

    streams: List[List[int]]


class Requeue(NamedTuple):
    """Stub to host: these batches have not begun and will not, because what runs waits for another model."""

    batches: List[int]


class Call(NamedTuple):
    """Stub to host: have another model execute `request`. `version` is -1 for any.

    `decoupled` if the caller takes any number of responses. `waiting` is the batch that cannot go on without the
    answer, 0 if there is none.
    """

    call: int
    model: str
    version: int
    request: List[Any]
    decoupled: bool
    waiting: int


class Answer(NamedTuple):
    """Host to stub: a response to a call, or nil for none; `final` if no other follows.

    The response's slot is the number of a *hold*: its memory stays until a ReleaseHold names it.
    """

    call: int
    response: Optional[List[Any]]
    final: bool


class CancelCall(NamedTuple):
    """Stub to host: nobody waits for this call any longer. It is answered all the same."""

    call: int


class Consumed(NamedTuple):
    """Stub to host: how many more responses of a call were taken by the model, as `[call, count]` pairs."""

    calls: List[List[int]]


class ReleaseHold(NamedTuple):
    """Stub to host: holds whose memory nobody looks into any longer."""

    holds: List[int]


class Unread(NamedTuple):
    """Host to stub: calls whose inputs nobody reads any longer."""

    calls: List[int]


class Unmap(NamedTuple):
    """Host to stub: regions that nothing will refer to any longer."""

    regions: List[int]


class Ask(NamedTuple):
    """Stub to host: anything else that a model wants of the server; see stub/host.py for the methods."""

    question: int
    method: str
    arguments: List[Any]


class Reply(NamedTuple):
    """Host to stub: the answer to an Ask. `code` is -1, or what went wrong and then `value` is a text about it."""

    question: int
    code: int
    value: Any


class Measure(NamedTuple):
    """Stub to host: do `operation` ("increment", "set" or "observe") with a metric that was asked for."""

    metric: int
    operation: str
    value: float


class CheckReady(NamedTuple):
    """Host to stub: ask the model's is_ready."""


class IsReady(NamedTuple):
    """Stub to host: what is_ready said; `problem` why it did not say anything useful, or ""."""

    ready: bool
    problem: str


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
]

# The tag of a message is its place in this list, so new ones go to its end.
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
)

TAGS: Dict[Type[Any], int] = {message: tag for tag, message in enumerate(MESSAGES)}

# What each field must be on arrival. Spelled out, because reading annotations back is slow and 3.8 cannot do it here.
FIELDS: Tuple[Tuple[Any, ...], ...] = (
    (int, int, str),
    (dict, str),
    (str,),
    (dict, dict, int, int),
    (bool,),
    (str,),
    (int, list, list),
    (list,),
    (int, list, list, int, int),
    (int, str, list, int, int),
    (list,),
    (int, str, str, int),
    (),
    (),
    (int, (list, type(None)), bool),
    (list,),
    (list,),
    (int, str, int, list, bool, int),
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
)
