# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The protocol between `pyruntime stack` and a stub, which needs no server. (pure)

A stub has an unnamed file in memory and a pipe, its *bell*. Other processes of its user see both as links in
/proc/<pid>/fd. When a byte arrives in the pipe, the stub appends the stacks of its threads to the file.

file     := heading (stacks | dump)*
heading  := {"pid":int "bell":str "model":str "version":str "instance":str} newline        JSON, in one line
stacks   := text END                                                   written after a byte in the pipe
dump     := the output of CPython's faulthandler, ASCII                written on STACK_SIGNAL

The signal is for a stub that does not answer because a call into C keeps the interpreter's lock. It is only the second
attempt, because faulthandler reads the stacks of running threads, and has crashed healthy processes.

`pid` is the stub's own pid in its namespace, `bell` is the target of the link to its pipe. A child that the stub has
just forked has both open too, but has another pid.
"""

from __future__ import annotations

import json
import signal
from typing import NamedTuple, Optional

FILE_NAME = "pyruntime-stack"
LINK = f"/memfd:{FILE_NAME} (deleted)"
END = b"\0"
# From the upper end of the real-time signals, because C libraries and language runtimes use the lower end.
STACK_SIGNAL = signal.SIGRTMAX - 3
# An instance's name is as long as a configuration allows, 1 MiB, and each of its characters may need an escape.
HEADING_BYTES_MAX = 16 << 20


class Heading(NamedTuple):
    """The process and the instance of a file."""

    pid: int
    bell: str
    model: str
    version: str
    instance: str


def encode_heading(heading: Heading) -> bytes:
    """The first line of a file."""
    return json.dumps(heading._asdict()).encode() + b"\n"


def decode_heading(line: bytes) -> Optional[Heading]:
    """Decode the first line of a file; None for anything else, such as an incomplete line."""
    if not line.endswith(b"\n"):
        return None
    try:
        heading = Heading(**json.loads(line))
    except (ValueError, TypeError):
        return None
    if [type(field) for field in heading] != [int, str, str, str, str]:
        return None
    return heading
