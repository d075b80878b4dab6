# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How `pyruntime stack` and a stub speak to each other, past the server. (pure)

A stub holds a nameless file in memory and a pipe, its *bell*. Others of its user see both as links in /proc/<pid>/fd. A
byte in the pipe has it append the stacks of its threads to the file.

file     := heading (stacks | dump)*
heading  := {"pid":int "bell":str "model":str "version":str "instance":str} newline        JSON, in one line
stacks   := text END                                                   written when the bell was heard
dump     := what CPython's faulthandler writes, ASCII                  written on STACK_SIGNAL

The signal is for a stub that does not hear its bell because a call into C keeps the interpreter's lock. It must not be
the first thing that is tried: faulthandler looks at the threads while they run, and has brought down processes that
were well.

`pid` is the stub's own number for itself, `bell` is what the link to its pipe says. Who else has them open, because the
stub has just forked it, has another number.
"""

from __future__ import annotations

import json
import signal
from typing import NamedTuple, Optional

FILE_NAME = "pyruntime-stack"
LINK = f"/memfd:{FILE_NAME} (deleted)"
END = b"\0"
# From the upper end of the real-time signals: C libraries and language runtimes take theirs from the lower one.
STACK_SIGNAL = signal.SIGRTMAX - 3
# An instance's name is as long as a configuration allows, 1 MiB, and each of its characters may need an escape.
HEADING_BYTES_MAX = 16 << 20


class Heading(NamedTuple):
    """Whose stacks a file holds."""

    pid: int
    bell: str
    model: str
    version: str
    instance: str


def encode_heading(heading: Heading) -> bytes:
    """The first line of a file."""
    return json.dumps(heading._asdict()).encode() + b"\n"


def decode_heading(line: bytes) -> Optional[Heading]:
    """What `encode_heading` made; None for anything else, such as a line that is not complete yet."""
    if not line.endswith(b"\n"):
        return None
    try:
        heading = Heading(**json.loads(line))
    except (ValueError, TypeError):
        return None
    if [type(field) for field in heading] != [int, str, str, str, str]:
        return None
    return heading
