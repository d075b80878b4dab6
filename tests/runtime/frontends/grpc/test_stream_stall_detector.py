# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which streams are found to make no progress."""

from pyruntime.runtime.frontends.grpc.keepalive import STALLED_S_MAX
from pyruntime.runtime.frontends.grpc.stream_stall_detector import (
    HALF_MESSAGE_S_MAX,
    READ_BYTES_PER_S_MIN,
    TAKEN_BYTES_MAX,
    Stalls,
)


def test_streams_that_do_not_move():
    stalls = Stalls()
    assert stalls.look(0.0, [(1, 10, -1), (3, -1, 0), (5, 7, 7)]) == ([], [])
    assert stalls.look(HALF_MESSAGE_S_MAX - 1, [(1, 10, -1), (3, -1, 0), (5, 7, 7)]) == ([], [])
    assert stalls.look(HALF_MESSAGE_S_MAX, [(1, 10, -1), (3, -1, 0), (5, 8, 7)]) == ([1], [])
    assert stalls.look(STALLED_S_MAX - 1, [(3, -1, 0), (5, 9, 7)]) == ([], [])
    assert stalls.look(STALLED_S_MAX, [(3, -1, 0), (5, 10, 7)]) == ([], [3, 5])


def test_client_that_reads_what_lies_before():
    """Nothing of a stream is sent while the client still reads what was sent before it: no stream is stuck then."""
    stalls = Stalls()
    assert stalls.look(0.0, [(1, -1, 0)]) == ([], [])
    assert stalls.look(STALLED_S_MAX, [(1, -1, 0)], moves=True) == ([], [])
    assert stalls.look(2 * STALLED_S_MAX - 1, [(1, -1, 0)]) == ([], [])
    assert stalls.look(2 * STALLED_S_MAX, [(1, -1, 0)]) == ([], [1])


def test_progress():
    """Every byte is progress, and so is a message that ends between two looks."""
    stalls = Stalls()
    for number in range(10):
        assert stalls.look(number * STALLED_S_MAX, [(1, number, -1)]) == ([], [])
    stalls.look(1000.0, [(1, 5, 5)])
    stalls.look(1000.0 + STALLED_S_MAX / 2, [])
    assert stalls.look(1000.0 + STALLED_S_MAX, [(1, 5, 5)]) == ([], [])


def test_client_that_has_taken_much():
    """It has as long as it needs to read that slowly, before it must open a window: up to a limit."""
    for taken, most in ((1 << 20, 1 << 20), (1 << 30, TAKEN_BYTES_MAX)):
        stalls = Stalls()
        patience = most / READ_BYTES_PER_S_MIN
        assert stalls.look(0.0, [(1, -1, taken)]) == ([], [])
        assert stalls.look(patience - 1, [(1, -1, taken)]) == ([], [])
        assert stalls.look(patience, [(1, -1, taken)]) == ([], [1])
