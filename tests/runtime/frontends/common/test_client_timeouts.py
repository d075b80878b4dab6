# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import pytest

from pyruntime.runtime.frontends.common.client_timeouts import (
    BODY_BYTES_PER_S_MIN,
    BODY_GRACE_S,
    BODY_STALLED_S_MAX,
    CROWDED_HEAD_S_MAX,
    CROWDED_IDLE_S_MAX,
    HEAD_S_MAX,
    IDLE_S_MAX,
    ClientTimeouts,
    Phase,
)


class Client:
    """One whose connection is looked at."""

    def __init__(self, phase, now=1000.0):
        self.timeouts = ClientTimeouts()
        self.phase = phase
        self.now = now
        assert not self.look(anew=True)

    def look(self, after=0.0, phase=None, anew=False, taken=0, crowded=False):
        self.now += after
        return self.timeouts.are_exceeded(self.now, phase or self.phase, anew=anew, taken=taken, crowded=crowded)


@pytest.mark.parametrize(
    ("phase", "crowded", "limit"),
    [
        (Phase.REQUEST, False, IDLE_S_MAX),
        (Phase.REQUEST, True, CROWDED_IDLE_S_MAX),
        (Phase.HEAD, False, HEAD_S_MAX),
        (Phase.HEAD, True, CROWDED_HEAD_S_MAX),
        (Phase.BODY, False, BODY_STALLED_S_MAX),
        (Phase.BODY, True, BODY_STALLED_S_MAX),
    ],
)
def test_limits(phase, crowded, limit):
    """Each phase has its limit, and reaching it is too long."""
    client = Client(phase)
    assert not client.look(limit - 1, crowded=crowded)
    assert client.look(1, crowded=crowded)


@pytest.mark.parametrize("phase", [Phase.REQUEST, Phase.HEAD, Phase.BODY])
def test_another_request(phase):
    """A client's next request has the full time again."""
    client = Client(phase)
    assert not client.look(10 * IDLE_S_MAX, anew=True)
    assert not client.look(1)


def test_another_phase():
    """Each phase has its own time."""
    client = Client(Phase.REQUEST)
    assert not client.look(IDLE_S_MAX, phase=Phase.HEAD)
    assert not client.look(HEAD_S_MAX, phase=Phase.BODY)
    assert not client.look(BODY_STALLED_S_MAX - 1, phase=Phase.BODY)


def test_waiting_for_the_server():
    """A client has all the time of the world to wait."""
    client = Client(Phase.SERVER)
    for _ in range(5):
        assert not client.look(IDLE_S_MAX, crowded=True)


def test_body_that_trickles():
    """A body that comes too slowly is over in the end, however steadily it comes."""
    client, taken = Client(Phase.BODY), -(1 << 30)
    client.look(anew=True, taken=taken)
    waited = 0
    while not client.look(BODY_STALLED_S_MAX - 1, taken=(taken := taken + 10)):
        waited += BODY_STALLED_S_MAX - 1
    assert BODY_GRACE_S - BODY_STALLED_S_MAX < waited <= BODY_GRACE_S


def test_body_that_is_slow():
    """One that comes just fast enough may take any time."""
    client, taken = Client(Phase.BODY), 0
    for _ in range(1000):
        taken += 10 * BODY_BYTES_PER_S_MIN
        assert not client.look(10, taken=taken)


def test_body_that_stalls_after_a_lot():
    """A body that stalls is late, even after many bytes."""
    client = Client(Phase.BODY)
    assert not client.look(1, taken=1 << 30)
    assert not client.look(BODY_STALLED_S_MAX - 1, taken=1 << 30)
    assert client.look(1, taken=1 << 30)


def test_repr():
    """The repr has the phase."""
    assert repr(Client(Phase.HEAD).timeouts) == "<ClientTimeouts HEAD>"
