# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""An event loop over virtual time, in one thread and without I/O.

It never waits: if no callback is ready, the clock jumps to the next timer. So a scenario of minutes takes milliseconds,
and two runs of it execute the same callbacks in the same order. It is a loop of its own, because asyncio's spends more
time on a callback than most callbacks take. No callback gets a context of its own: nothing that is simulated has any
context variable.
"""

import asyncio
from asyncio import events
from collections import deque
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count

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


class _Handle(list):
    """A callback to come, its arguments, and its time: see asyncio.Handle and asyncio.TimerHandle.

    The callback is None if it is cancelled. A list is made in half the time of other objects.
    """

    __slots__ = ()

    def cancel(self):
        self[:2] = None, None

    def cancelled(self):
        return self[0] is None

    def when(self):
        return self[2]


class _Task(asyncio.Task):
    """A task whose place in a set depends on its number, and not on its address."""

    def __init__(self, number, coroutine, loop, name):
        self._number = number
        super().__init__(coroutine, loop=loop, name=name)

    def __hash__(self):
        return self._number


class SimulatedLoop(asyncio.AbstractEventLoop):
    """See the module.

    `violations` is a list: once something is in it, `check` is called before the next turn, and its exception ends
    the run. `on_rest` is called before time jumps: all has happened then that can happen now. `connect` returns the
    transport of a new connection to a stub.
    """

    def __init__(self, clock, violations, check, on_rest, connect):
        self._clock = clock
        self._violations = violations
        self._check = check
        self._on_rest = on_rest
        self._connect = connect
        self._ready = deque()
        # (when, number, handle), of which the first one is the next; those of one moment are in the order of their
        # numbers.
        self._timers = []
        self._numbers = count()
        self._turns_left = TURNS_MAX
        self._is_stopping = False
        self._on_exception = None
        # What makes a protocol for a new connection, by the port.
        self.listening = {}
        # Whom to call back when a simulated descriptor can be read, or written.
        self._readers = {}
        self._writers = {}

    # Callbacks and timers.

    def time(self):
        return self._clock.now_ns / 1e9

    def call_soon(self, call_back, *arguments, context=None):
        handle = _Handle((call_back, arguments, None))
        self._ready.append(handle)
        return handle

    call_soon_threadsafe = call_soon

    def call_later(self, delay, call_back, *arguments, context=None):
        when = self._clock.now_ns / 1e9 + delay
        handle = _Handle((call_back, arguments, when))
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def call_at(self, when, call_back, *arguments, context=None):
        handle = _Handle((call_back, arguments, when))
        heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self):
        return asyncio.Future(loop=self)

    def create_task(self, coroutine, *, name=None, context=None):
        return _Task(next(self._numbers), coroutine, self, name)

    # A function in C that returns False: each future and each task asks.
    get_debug = bool

    def is_running(self):
        return events._get_running_loop() is self

    def is_closed(self):
        return False

    def set_exception_handler(self, handler):
        self._on_exception = handler

    def call_exception_handler(self, context):
        self._on_exception(self, context)

    # The run.

    def run_until_complete(self, coroutine):
        """Run a coroutine to its end, and return its result. Raises Stuck, and what `check` and `on_rest` raise."""
        task = self.create_task(coroutine)
        task.add_done_callback(lambda _: self.stop())
        self._run()
        return task.result()

    def stop(self):
        self._is_stopping = True

    def _run(self):
        """Turn after turn: call back all that is ready, and jump to the next timer if nothing is."""
        clock, ready, timers, violations = self._clock, self._ready, self._timers, self._violations
        self._is_stopping = False
        events._set_running_loop(self)
        try:
            while not self._is_stopping:
                clock.now_ns += TURN_NS
                if violations:
                    self._check()
                if not ready:
                    self._jump()
                if timers:
                    now = clock.now_ns / 1e9
                    while timers and timers[0][0] <= now:
                        ready.append(heappop(timers)[2])
                for _ in range(len(ready)):
                    call_back, arguments, _ = ready.popleft()
                    if call_back is not None:
                        try:
                            call_back(*arguments)
                        except Exception as exc:
                            self._on_exception(self, {"message": f"{call_back} failed", "exception": exc})
                self._turns_left -= 1
                if self._turns_left < 0:
                    raise Stuck
        finally:
            events._set_running_loop(None)

    def _jump(self):
        """Nothing is ready: advance the clock to the next timer. Raises Stuck if there is none."""
        timers = self._timers
        while timers and timers[0][2][0] is None:
            heappop(timers)
        if not timers:
            raise Stuck
        clock = self._clock
        wait_s = timers[0][0] - clock.now_ns / 1e9
        if wait_s > 0:
            self._on_rest()
            clock.now_ns += int(wait_s * 1e9) + 1

    def abandon(self):
        """End a run, which may have failed: cancel all tasks until they end."""
        self._violations = ()
        self._on_rest = lambda: None
        for _ in range(ABANDONED_ROUNDS):
            tasks = asyncio.all_tasks(self)
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            self._turns_left = TURNS_MAX
            self.call_later(ABANDONED_S, self.stop)
            with suppress(Stuck):
                self._run()
        for task in (left := asyncio.all_tasks(self)):
            task._log_destroy_pending = False
        _LEFT.extend(left)

    # What is simulated in place of sockets and threads.

    def add_reader(self, fd, call_back, *arguments):
        self._readers[fd] = call_back, arguments

    def remove_reader(self, fd):
        self._readers.pop(fd, None)

    def add_writer(self, fd, call_back, *arguments):
        self._writers[fd] = call_back, arguments

    def remove_writer(self, fd):
        self._writers.pop(fd, None)

    def is_readable(self, fd):
        """Something can be read from a simulated descriptor."""
        if fd in self._readers:
            call_back, arguments = self._readers[fd]
            self.call_soon(call_back, *arguments)

    def is_writable(self, fd):
        """A simulated descriptor has room."""
        if fd in self._writers:
            call_back, arguments = self._writers[fd]
            self.call_soon(call_back, *arguments)

    async def create_unix_connection(self, factory, path=None, *, sock=None, **options):
        """Connect to the stub that was launched just before."""
        protocol = factory()
        transport = self._connect(protocol, sock)
        protocol.connection_made(transport)
        return transport, protocol

    async def create_server(self, factory, address, port, **options):
        """Listen at a port: see World.dial."""
        return _Listener(self.listening, port, factory)

    async def connect_read_pipe(self, factory, pipe):
        """The output of a stub, which writes nothing."""
        return _SilentPipe(pipe), factory()

    def run_in_executor(self, executor, function, *arguments):
        """Work of other threads is done at once: there is only one thread. A future is the result of what waits."""
        done = self.create_future()
        try:
            result = function(*arguments)
            if isinstance(result, asyncio.Future):
                return result
            done.set_result(result)
        except Exception as exc:
            done.set_exception(exc)
        return done


class _Listener:
    """See asyncio.Server."""

    sockets = (None,)

    def __init__(self, listening, port, factory):
        self._listening = listening
        self._port = port
        listening[port] = factory

    def close(self):
        self._listening.pop(self._port, None)


class _SilentPipe:
    def __init__(self, pipe):
        self._pipe = pipe

    def is_closing(self):
        """Nothing is left to be read."""
        return True

    def close(self):
        self._pipe.close()
