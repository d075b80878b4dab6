# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections that share the time of each turn: the clock is moved by their work."""

from pyruntime.runtime.rounds import AT_ONCE_MAX, SLICE_S, TURN_S, Rounds


class Loop:
    """A clock, and what happens in the next turn."""

    def __init__(self):
        self.now = 100.0
        self.due = []
        self.rounds = Rounds(lambda: self.now, self.due.append)

    def turn(self):
        due = self.due[:]
        del self.due[:]
        for call_back in due:
            call_back()


class Connection:
    """Has `left` requests of `cost_s` seconds each, and says when it handled one."""

    def __init__(self, loop, left, cost_s, handled=None):
        self.loop = loop
        self.left = left
        self.cost_s = cost_s
        self.handled = [] if handled is None else handled

    def go_on(self):
        while self.left:
            if self.loop.now >= self.loop.rounds.until and not self.loop.rounds.admits(self):
                return
            self.left -= 1
            self.loop.now += self.cost_s
            self.handled.append(self)

    take_slice = go_on


class Client(Connection):
    """Its first request takes little time, so it is handled at once while the turn allows it."""

    def go_on(self):
        rounds = self.loop.rounds
        if rounds.at_once > 0:
            rounds.at_once -= 1
            self.left -= 1
            self.loop.now += self.cost_s
            self.handled.append(self)
        super().go_on()


def test_few_requests():
    """What takes less than a turn is done in one."""
    loop = Loop()
    one, other = Connection(loop, 3, TURN_S / 10), Connection(loop, 3, TURN_S / 10)
    one.go_on()
    other.go_on()
    assert one.left == other.left == 0
    loop.turn()
    assert not loop.due


def test_many_requests():
    """A turn ends when its time is over, by one request at most; the next turn goes on."""
    loop = Loop()
    connection = Connection(loop, 100, TURN_S / 4)
    connection.go_on()
    assert len(connection.handled) == 4
    turns = 0
    while connection.left:
        begun, left = loop.now, connection.left
        loop.turn()
        assert connection.left < left
        assert loop.now - begun < TURN_S + 2 * connection.cost_s
        turns += 1
    assert turns > 10
    loop.turn()
    assert not loop.due


def test_many_connections():
    """All connections share the time of a turn, and have their slices in order."""
    loop = Loop()
    handled = []
    all_of_them = [Connection(loop, 20, TURN_S / 5, handled) for _ in range(50)]
    begun = loop.now
    for connection in all_of_them:
        connection.go_on()
    assert loop.now - begun < 2 * TURN_S
    while any(connection.left for connection in all_of_them):
        begun = loop.now
        loop.turn()
        assert loop.now - begun < 2 * TURN_S
        # No connection is more than one slice ahead, but for the one that had the first turn.
        lefts = sorted(connection.left for connection in all_of_them[1:])
        assert lefts[-1] - lefts[0] <= 2
    assert len(handled) == 50 * 20


def test_slow_requests():
    """A request that takes longer than a slice, or a turn, is handled all the same, one in each turn."""
    loop = Loop()
    one, other = Connection(loop, 3, 2 * TURN_S), Connection(loop, 3, 2 * TURN_S)
    one.go_on()
    other.go_on()
    assert (one.left, other.left) == (2, 3)
    lefts = []
    while one.left or other.left:
        loop.turn()
        lefts.append(one.left + other.left)
    assert lefts == [4, 3, 2, 1, 0]


def test_a_preempted_slice():
    """A slice that is over before it was used allows one request."""
    loop = Loop()

    class Slow(Connection):
        def take_slice(self):
            loop.now += 2 * SLICE_S
            self.go_on()

    first, connection = Connection(loop, 10, TURN_S), Slow(loop, 2, TURN_S)
    first.go_on()
    connection.go_on()
    while connection.left:
        loop.turn()
    assert connection.handled == [connection] * 2


def test_requests_of_a_busy_turn():
    """While connections wait, further ones wait behind them."""
    loop = Loop()
    handled = []
    first, second = Connection(loop, 3, TURN_S, handled), Connection(loop, 1, TURN_S, handled)
    first.go_on()
    loop.turn()
    second.go_on()
    assert handled == [first, first]
    loop.turn()
    loop.turn()
    assert handled == [first, first, first, second]
    assert repr(loop.rounds) == "<Rounds: 0 connections wait>"


def test_lost_connection():
    """A connection that has nothing to do any more does not hold others up."""
    loop = Loop()
    first, lost, second = (Connection(loop, 2, TURN_S) for _ in range(3))
    for connection in (first, lost, second):
        connection.go_on()
    lost.left = 0
    for _ in range(5):
        loop.turn()
    assert (first.left, second.left) == (0, 0)


def test_first_requests_of_many_connections():
    """Some are handled without a look at the clock, then others for the time of a turn, and the rest in later turns."""
    loop = Loop()
    handled = []
    crowd = [Client(loop, 1, SLICE_S, handled) for _ in range(10 * AT_ONCE_MAX)]
    for client in crowd:
        client.go_on()
    in_time = round(TURN_S / SLICE_S)
    assert handled == crowd[: AT_ONCE_MAX + in_time]
    while len(handled) < len(crowd):
        before = len(handled)
        loop.turn()
        assert before < len(handled) <= before + in_time + 1
    assert handled == crowd


def test_first_requests_while_others_wait():
    """In each turn some are handled at once, however many connections wait."""
    loop = Loop()
    waiting = [Connection(loop, 10, TURN_S) for _ in range(10)]
    for connection in waiting:
        connection.go_on()
    for _ in range(5):
        clients = [Client(loop, 1, SLICE_S) for _ in range(AT_ONCE_MAX + 1)]
        for client in clients:
            client.go_on()
        assert [client.left for client in clients] == [0] * AT_ONCE_MAX + [1]
        loop.turn()


def test_first_requests_of_many_turns():
    """Turns with few of them let all be handled at once."""
    loop = Loop()
    for _ in range(10 * AT_ONCE_MAX):
        client = Client(loop, 1, SLICE_S)
        client.go_on()
        assert client.left == 0
        loop.turn()
