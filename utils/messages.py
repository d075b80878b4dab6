# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What host and stub say to each other. (pure)

docs/protocol.md has the grammar. Every message is a named tuple; on the wire it is `[tag, [field, ...]]`, in which
requests, responses and tensors are plain arrays, for speed:

    tensor   := [name:str datatype:str shape:[int...] offset:int size:int]        offsets count from the region's start
    request  := [id:str correlation:(int|str) flags:int timeout_us:int outputs:([str...]|nil) parameters:str tensor*]
    response := [code:int message:str slot:int tensors:[tensor...] parameters:str]   code -1 is success, slot -1 is none

`parameters` is a JSON object as text, or "" for none.
"""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Tuple, Type, Union

# Raised whenever the meaning of a message changes: a stub of another version is refused in its Hello.
PROTOCOL_VERSION = 1

OK = -1
NO_SLOT = -1


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
    """Host to stub: import the model and call initialize with `args`."""

    location: Dict[str, str]
    args: Dict[str, str]


class Ready(NamedTuple):
    """Stub to host: initialize has returned; execute may be called."""


class LoadFailed(NamedTuple):
    """Stub to host: importing, auto-completing or initialising the model failed. `reason` is for its author."""

    reason: str


class Infer(NamedTuple):
    """Host to stub: execute this batch. `released` are response slots that the host has read to the end."""

    batch: int
    requests: List[Any]
    released: List[int]


class Release(NamedTuple):
    """Host to stub: response slots read to the end, when there is no Infer to carry them."""

    released: List[int]


class Result(NamedTuple):
    """Stub to host: one response for each request of the batch, in order.

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
    """Stub to host: `[batch, index]` pairs of requests that were retained and are held no longer."""

    requests: List[Any]


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


Message = Union[
    Hello, AutoComplete, Completed, Load, Ready, LoadFailed, Infer, Release, Result, Failed, Retired, Log, Stop, Stopped
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
)

TAGS: Dict[Type[Any], int] = {message: tag for tag, message in enumerate(MESSAGES)}

# What each field must be on arrival. Spelled out, because reading annotations back is slow and 3.8 cannot do it here.
FIELDS: Tuple[Tuple[Type[Any], ...], ...] = (
    (int, int, str),
    (dict, str),
    (str,),
    (dict, dict),
    (),
    (str,),
    (int, list, list),
    (list,),
    (int, list, list, int, int),
    (int, str, list, int, int),
    (list,),
    (int, str, str, int),
    (),
    (),
)
