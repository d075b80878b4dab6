# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json

import pytest

from pyruntime.utils.stacks import HEADING_BYTES_MAX, STACK_SIGNAL, Heading, decode_heading, encode_heading


@pytest.mark.parametrize("name", ["add_sub_0", "a/b c", "ä\n\x1b[2J", "\U0001f600" * 20])
def test_heading_survives(name):
    """A heading with any names is encoded as one line and decoded to an equal heading."""
    heading = Heading(12, "pipe:[3]", name, "3", name)
    line = encode_heading(heading)
    assert line.index(b"\n") == len(line) - 1
    assert decode_heading(line) == heading


def test_longest_heading_is_read():
    """Two names as long as a file's name and as a configuration may be are no reason not to find a stub."""
    assert (
        len(encode_heading(Heading(1 << 22, "pipe:[18446744073709551615]", "\x01" * 255, "9" * 19, "\x01" * (1 << 20))))
        < HEADING_BYTES_MAX
    )


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"7\n",
        b"no JSON\n",
        encode_heading(Heading(12, "pipe:[3]", "m", "1", "m_0"))[:-1],
        json.dumps({"pid": "12", "bell": "b", "model": "m", "version": "1", "instance": "m_0"}).encode() + b"\n",
        json.dumps({"pid": 12, "bell": "b", "model": "m", "version": 1, "instance": "m_0"}).encode() + b"\n",
        json.dumps({"pid": 12, "bell": "b", "model": "m", "version": "1", "instance": "m_0", "more": 1}).encode()
        + b"\n",
    ],
)
def test_what_is_no_heading(line):
    """A line that is incomplete, or has another format, is not a heading."""
    assert decode_heading(line) is None


def test_signal_is_a_real_time_signal():
    """No other use has a claim to the signal."""
    assert 34 < STACK_SIGNAL < 64
