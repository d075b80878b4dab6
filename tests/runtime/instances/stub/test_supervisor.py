# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The supervisor: events in, commands out; every transition that is not in its table is refused."""

import signal

import pytest

from pyruntime.runtime.instances.stub.supervisor import (
    NEXT,
    QUICK_DEATHS_MAX,
    CancelRestart,
    Exited,
    Limits,
    Postponed,
    ProcessExit,
    Ready,
    Restart,
    Started,
    StartFailed,
    State,
    Stop,
    StopRequested,
    Supervisor,
    TakeDown,
)
from pyruntime.utils.errors import LocalError

CRASH = Exited(ProcessExit(-signal.SIGSEGV))
EVENTS = [Started(), Ready(), CRASH, StartFailed("no memory"), Postponed(), StopRequested()]

# Events that lead a new supervisor to each state.
PATHS = {
    State.NEW: [],
    State.INITIALIZING: [Started()],
    State.READY: [Started(), Ready()],
    State.RESTARTING: [Started(), Ready(), CRASH],
    State.REINITIALIZING: [Started(), Ready(), CRASH, Started()],
    State.STOPPING: [Started(), StopRequested()],
    State.STOPPED: [StopRequested()],
    State.FAILED: [Started(), CRASH],
}


def supervised(*events, limits=None):
    """A supervisor that has seen these events, all at once; and its commands for the last one."""
    supervisor, commands = Supervisor(limits), []
    for event in events:
        commands = supervisor.handle(event, now=0.0)
    return supervisor, commands


def crash(supervisor, ready_s, now):
    """A process starts, is ready for `ready_s` seconds, and dies; returns the last command that follows."""
    supervisor.handle(Started(), now)
    supervisor.handle(Ready(), now)
    return supervisor.handle(CRASH, now + ready_s)[-1]


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_the_table_is_the_law(state, event):
    """In every state, an event of the table leads where it says, and any other is refused and changes nothing."""
    supervisor, _ = supervised(*PATHS[state])
    assert supervisor.state is state
    expected = NEXT.get((state, type(event)))
    if expected is None:
        with pytest.raises(LocalError, match=f"^{type(event).__name__} is not legal while {state.name}$"):
            supervisor.handle(event, now=0.0)
        assert supervisor.state is state
    else:
        supervisor.handle(event, now=0.0)
        assert supervisor.state is expected


class TestRestarts:
    def test_the_first_death_is_followed_by_a_restart_at_once(self):
        """An instance that was ready and dies is started again without a wait."""
        assert crash(Supervisor(), ready_s=1.0, now=0.0) == Restart(0.0)

    def test_a_process_that_was_overdue_restarts_at_once_and_has_not_died(self):
        """However often the server ends it, the instance is not taken down, and its deaths have their short waits."""
        supervisor = Supervisor()
        for _ in range(2 * QUICK_DEATHS_MAX):
            supervisor.handle(Started(), now=0.0)
            supervisor.handle(Ready(), now=0.0)
            assert supervisor.handle(Exited(CRASH.exit, was_overdue=True), now=0.0) == [Restart(0.0)]
        assert crash(supervisor, ready_s=0.0, now=0.0) == Restart(0.0)

    def test_waits_double_up_to_the_limit(self):
        """Deaths in a row are followed by waits of 0, 0.1, 0.2, 0.4, ... seconds, none above ten."""
        supervisor = Supervisor(Limits(deaths_max=100))
        waits = [crash(supervisor, ready_s=1.0, now=float(count)).after_s for count in range(11)]
        assert waits == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]

    def test_a_healthy_stretch_ends_the_row(self):
        """After 30 seconds of readiness, the next death is a first one again."""
        supervisor = Supervisor()
        for _ in range(20):
            assert crash(supervisor, ready_s=30.0, now=0.0) == Restart(0.0)
            assert crash(supervisor, ready_s=29.9, now=0.0) == Restart(0.1)

    def test_a_death_while_initializing_again_counts(self):
        """A process that dies before it is ready again continues the row, however long the last one was ready."""
        supervisor = Supervisor()
        crash(supervisor, ready_s=100.0, now=0.0)
        supervisor.handle(Started(), now=200.0)
        assert supervisor.handle(CRASH, now=300.0) == [Restart(0.1)]

    def test_a_failed_start_counts(self):
        """A process that could not be started counts, and so does one whose model fails to initialize."""
        supervisor, _ = supervised(*PATHS[State.RESTARTING])
        assert supervisor.handle(StartFailed("no memory"), now=1.0) == [Restart(0.1)]
        supervisor.handle(Started(), now=2.0)
        assert supervisor.handle(StartFailed("the model says no"), now=3.0) == [Restart(0.2)]


class TestPostponing:
    def test_is_no_death(self):
        """However often a process cannot be started for lack of resources, the instance is not down."""
        supervisor, _ = supervised(*PATHS[State.RESTARTING])
        waits = [supervisor.handle(Postponed(), now=0.0)[0].after_s for _ in range(9)]
        assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]
        supervisor.handle(Started(), now=0.0)
        assert supervisor.handle(CRASH, now=0.0) == [Restart(0.1)]  # the second death

    def test_waits_begin_again(self):
        """A process that was started ends the row."""
        supervisor, _ = supervised(*PATHS[State.RESTARTING], Postponed(), Postponed(), Started(), CRASH)
        assert supervisor.handle(Postponed(), now=0.0) == [Restart(0.1)]

    def test_after_a_stop(self):
        """A postponed start is not repeated for an instance that is not needed any more."""
        supervisor, commands = supervised(*PATHS[State.RESTARTING], StopRequested(), Postponed())
        assert commands == []
        assert supervisor.state is State.STOPPED


class TestBeingDown:
    def test_after_five_deaths(self):
        """With the fifth death of a row the instance is down; the reason says how the process died."""
        supervisor = Supervisor()
        for _ in range(4):
            assert isinstance(crash(supervisor, ready_s=1.0, now=0.0), Restart)
        supervisor.handle(Started(), now=0.0)
        down, restart = supervisor.handle(CRASH, now=0.0)
        assert down == TakeDown(
            "its process died 5 times without being ready for 30 s in between, so it is started again after longer and"
            " longer waits; the last time: killed by SIGSEGV"
        )
        assert restart == Restart(15.0)
        assert supervisor.state is State.RESTARTING

    def test_waits_go_on(self):
        """The waits are longer and longer, for ever, and none is above a quarter of an hour."""
        supervisor = Supervisor()
        waits = [crash(supervisor, ready_s=1.0, now=0.0).after_s for _ in range(15)]
        assert waits[4:] == [15.0, 30.0, 60.0, 120.0, 240.0, 480.0, 900.0, 900.0, 900.0, 900.0, 900.0]

    def test_a_healthy_stretch_ends_it(self):
        """An instance that was down and recovers has all its restarts again."""
        supervisor = Supervisor()
        for _ in range(8):
            crash(supervisor, ready_s=1.0, now=0.0)
        assert crash(supervisor, ready_s=30.0, now=0.0) == Restart(0.0)

    def test_the_reason_names_a_failed_start(self):
        """Where there was no exit, the reason says what went wrong instead."""
        _, commands = supervised(*PATHS[State.RESTARTING], StartFailed("no memory"), limits=Limits(deaths_max=2))
        assert commands[0].reason.endswith("; the last time: no memory")

    @pytest.mark.parametrize("events", [[Started(), CRASH], [Started(), StartFailed("x")], [StartFailed("x")]])
    def test_the_first_initialization_is_the_loaders_business(self, events):
        """Before it was ever ready, an instance that dies is neither restarted nor down."""
        supervisor, commands = supervised(*events)
        assert commands == []
        assert supervisor.state is State.FAILED


class TestStopping:
    @pytest.mark.parametrize("state", [State.INITIALIZING, State.READY, State.REINITIALIZING])
    def test_a_process_is_stopped(self, state):
        """Where there is a process, it is to be stopped; its exit is no crash then."""
        supervisor, commands = supervised(*PATHS[state], StopRequested())
        assert commands == [Stop()]
        assert supervisor.handle(CRASH, now=0.0) == []
        assert supervisor.state is State.STOPPED

    def test_a_restart_is_cancelled(self):
        """Where a process is only due, it is not to be started."""
        _, commands = supervised(*PATHS[State.RESTARTING], StopRequested())
        assert commands == [CancelRestart()]

    def test_a_process_that_starts_after_all_is_stopped(self):
        """A start that was under way when the stop came is undone."""
        supervisor, commands = supervised(*PATHS[State.RESTARTING], StopRequested(), Started())
        assert commands == [Stop()]
        assert supervisor.handle(Exited(ProcessExit(0)), now=0.0) == []
        assert supervisor.state is State.STOPPED

    def test_becoming_ready_too_late_changes_nothing(self):
        """A process may report Ready before the stop reaches it."""
        _, commands = supervised(*PATHS[State.STOPPING], Ready())
        assert commands == []

    @pytest.mark.parametrize("state", [State.NEW, State.STOPPING, State.STOPPED, State.FAILED])
    def test_nothing_to_stop(self, state):
        """Where there is no process, or it is being stopped already, a stop asks for nothing."""
        _, commands = supervised(*PATHS[state], StopRequested())
        assert commands == []


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "exited with code 0"),
        (3, "exited with code 3"),
        (-signal.SIGSEGV, "killed by SIGSEGV"),
        (
            -signal.SIGKILL,
            "killed by SIGKILL (not by the server; it is unknown who sent it)",
        ),
        (-40, "killed by signal 40"),
    ],
)
def test_an_exit_in_words(code, words):
    """The text distinguishes exit codes and signals, and does not guess who sent one."""
    assert ProcessExit(code).describe() == words


def test_a_known_cause_of_sigkill_is_named():
    assert ProcessExit(-9, "by the server: it is late").describe() == "killed by SIGKILL (by the server: it is late)"


def test_repr_says_how_bad_it_is():
    """The repr for log lines."""
    supervisor, _ = supervised(*PATHS[State.RESTARTING])
    assert repr(supervisor) == "<Supervisor RESTARTING [1 deaths in a row]>"
