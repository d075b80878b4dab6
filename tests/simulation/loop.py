# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An event loop over virtual time, in one thread and without I/O.

Its `select` never waits: if no callback is ready, the clock jumps to the next timer. So a scenario of minutes takes
milliseconds, and two runs of it execute the same callbacks in the same order.
"""

import asyncio
from contextlib import suppress

# The virtual time that one turn of the loop takes, in nanoseconds. A timer that waits for a moment to *pass* would
# otherwise be set again and again for the same moment.
TURN_NS = 1_000
# The tasks of a run that has failed are cancelled so often, and have so many virtual seconds to end, each time.
ABANDONED_ROUNDS = 5
ABANDONED_S = 100.0
# Tasks that do not end by that. Nobody may collect them: their coroutines would complain.
_LEFT = []
# More turns than any scenario has. Timers that are set again and again for the same moment would have more.
TURNS_MAX = 100_000


class Stuck(Exception):
    """Somebody waits, and nothing can happen any more: no callback is ready, and no timer is set.

    Or so much happens that it never ends.
    """


class _NoSelector:
    """The place at which asyncio's loop waits."""

    def __init__(self, clock, on_turn, on_rest):
        self._clock = clock
        self._on_turn = on_turn
        self._on_rest = on_rest
        self.is_watched = True
        self.turns_left = TURNS_MAX

    def select(self, timeout):
        self._clock.now_ns += TURN_NS
        if self.is_watched:
            self._on_turn()
        self.turns_left -= 1
        if timeout is None or self.turns_left < 0:
            raise Stuck
        if timeout > 0:
            if self.is_watched:
                self._on_rest()
            self._clock.advance(timeout)
        return ()


class SimulatedLoop(asyncio.BaseEventLoop):
    """See the module.

    `on_turn` is called after each turn, and `on_rest` before time jumps: all has happened then that can happen now. An
    exception of either ends the run. `connect` returns the transport of a new connection to a stub.
    """

    def __init__(self, clock, on_turn, on_rest, connect):
        super().__init__()
        self._selector = _NoSelector(clock, on_turn, on_rest)
        self._clock = clock
        self._connect = connect
        self._clock_resolution = 1e-9
        self.set_debug(False)

    def time(self):
        return self._clock.monotonic()

    def abandon(self):
        """End a run that has failed: cancel all tasks until they end, and close."""
        self._selector.is_watched = False
        for _ in range(ABANDONED_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                break
            for task in tasks:
                task.cancel()
            self._selector.turns_left = TURNS_MAX
            self.call_later(ABANDONED_S, self.stop)
            with suppress(Stuck):
                self.run_forever()
        for task in (left := asyncio.all_tasks(self)):
            task._log_destroy_pending = False
        _LEFT.extend(left)
        self._check_closed = lambda: None
        self.close()

    def _process_events(self, events):
        """There are none."""

    def _write_to_self(self):
        """Nothing sleeps that could be woken."""

    async def create_unix_connection(self, factory, path=None, *, sock=None, **options):
        """Connect to the stub that was launched just before."""
        protocol = factory()
        transport = self._connect(protocol, sock)
        protocol.connection_made(transport)
        return transport, protocol

    async def connect_read_pipe(self, factory, pipe):
        """The output of a stub, which writes nothing."""
        return _SilentPipe(pipe), factory()

    def run_in_executor(self, executor, function, *arguments):
        """Work of other threads is done at once: there is only one thread."""
        done = self.create_future()
        try:
            done.set_result(function(*arguments))
        except Exception as exc:
            done.set_exception(exc)
        return done


class _SilentPipe:
    def __init__(self, pipe):
        self._pipe = pipe

    def close(self):
        self._pipe.close()
