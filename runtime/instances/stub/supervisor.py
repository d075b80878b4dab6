# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Decides whether, and when, the process of one instance is started again after a death. (pure)

It neither starts nor stops processes: it receives events of the process, and returns commands for the caller to
perform. A supervisor accompanies one instance from its first process to its last:

NEW ── Started ─► INITIALIZING ── Ready ─► READY ── Exited ─► RESTARTING ── Started ─► REINITIALIZING ── Ready ─► READY

- A death before the first Ready is no crash: the load of the model waits for that Ready, and fails.
- The first death of a row is followed by a restart at once, because requests wait; the next ones after
  `backoff_s_first`, doubled each time up to `backoff_s_max`.
- A row ends when the instance stays ready for `healthy_s`. When it reaches `deaths_max` the instance is down until it
  is ready again: no request waits for it. The waits go on from `down_s_first`, doubled each time up to `down_s_max`. A
  process that dies while it initializes again, or that cannot be started at all, counts like any other death.
- A process that the server kills because an execution has taken too long is started again at once. This is no death:
  its model is able to run, and each such end took the time that an execution may take.
- Where descriptors, processes or memory are lacking a start is postponed: it is tried again after `backoff_s_first`,
  doubled each time up to `postponed_s_max`. This is no death, and no reason to give up.
- A stop may be requested at any time, also during a restart: a process that starts after that is stopped.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from signal import Signals

from pyruntime.utils.errors import LocalError

# The wait before the second restart of a row, in seconds: enough to clear away what a crash left behind.
BACKOFF_S_FIRST = 0.1
# No wait is longer, in seconds: an instance should not be missing for minutes after the cause of its death is gone.
BACKOFF_S_MAX = 10.0
# No wait for descriptors, processes or memory is longer, in seconds: they may come back at any time.
POSTPONED_S_MAX = 5.0
# After this long without a death, in seconds, an instance has recovered: its next death begins a new row.
HEALTHY_S = 30.0
# Deaths in a row before the instance is down: requests must not wait for a model that cannot run.
QUICK_DEATHS_MAX = 5
# The first wait of an instance that is down, in seconds: longer than any before, because it needs time or help.
DOWN_S_FIRST = 15.0
# No wait is longer, in seconds: a model that cannot run costs next to nothing then, and comes back by itself.
DOWN_S_MAX = 900.0


# What is said of SIGKILL where nothing shows who sent it.
UNKNOWN_CAUSE = "not by the server; it is unknown who sent it"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a supervisor. All times are in seconds."""

    backoff_s_first: float = BACKOFF_S_FIRST
    backoff_s_max: float = BACKOFF_S_MAX
    postponed_s_max: float = POSTPONED_S_MAX
    healthy_s: float = HEALTHY_S
    deaths_max: int = QUICK_DEATHS_MAX
    down_s_first: float = DOWN_S_FIRST
    down_s_max: float = DOWN_S_MAX


@dataclass(frozen=True, slots=True)
class ProcessExit:
    """How a process ended: `code` is its exit code, or minus the number of the signal that killed it.

    `cause` says where SIGKILL came from, as far as that is known: a process cannot say it of itself.
    """

    code: int
    cause: str = field(default="", compare=False)

    def describe(self) -> str:
        """The end in words, for use after a colon: `killed by SIGSEGV`, `exited with code 3`."""
        if self.code >= 0:
            return f"exited with code {self.code}"
        try:
            name = Signals(-self.code).name
        except ValueError:  # most real-time signals have no name
            return f"killed by signal {-self.code}"
        if name == "SIGKILL":
            return f"killed by SIGKILL ({self.cause or UNKNOWN_CAUSE})"
        return f"killed by {name}"


@dataclass(frozen=True, slots=True)
class Started:
    """A process runs, and begins to initialize the model."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The process has initialized the model and takes requests."""


@dataclass(frozen=True, slots=True)
class Exited:
    """The process has ended, by itself or on request. `was_overdue`: the server ended it for a too long execution."""

    exit: ProcessExit
    was_overdue: bool = False


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The process could not be started, or the model failed to initialize. `error` is the reason."""

    error: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """The process could not be started, because the server lacks descriptors, processes or memory now."""


@dataclass(frozen=True, slots=True)
class StopRequested:
    """The instance is not needed any more."""


Event = Started | Ready | Exited | StartFailed | Postponed | StopRequested


@dataclass(frozen=True, slots=True)
class Restart:
    """Start a process in `after_s` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class CancelRestart:
    """Cancel the Restart. If its process is being started already, report how that ends as usual."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the process, and report its Exited."""


@dataclass(frozen=True, slots=True)
class TakeDown:
    """Let no request wait for the instance until it is Ready. `reason` is for operators and the repository index."""

    reason: str


Command = Restart | CancelRestart | Stop | TakeDown


class State(Enum):
    """The state of an instance. RESTARTING: it has no process, but one is due or being started."""

    NEW = auto()
    INITIALIZING = auto()
    READY = auto()
    RESTARTING = auto()
    REINITIALIZING = auto()
    STOPPING = auto()
    STOPPED = auto()
    FAILED = auto()


# Other transitions are illegal.
NEXT: dict[tuple[State, type[Event]], State] = {
    (State.NEW, Started): State.INITIALIZING,
    (State.NEW, StartFailed): State.FAILED,
    (State.NEW, StopRequested): State.STOPPED,
    (State.INITIALIZING, Ready): State.READY,
    (State.INITIALIZING, Exited): State.FAILED,
    (State.INITIALIZING, StartFailed): State.FAILED,
    (State.INITIALIZING, StopRequested): State.STOPPING,
    (State.READY, Exited): State.RESTARTING,
    (State.READY, StopRequested): State.STOPPING,
    (State.RESTARTING, Started): State.REINITIALIZING,
    (State.RESTARTING, StartFailed): State.RESTARTING,
    (State.RESTARTING, Postponed): State.RESTARTING,
    (State.RESTARTING, StopRequested): State.STOPPED,
    (State.REINITIALIZING, Ready): State.READY,
    (State.REINITIALIZING, Exited): State.RESTARTING,
    (State.REINITIALIZING, StartFailed): State.RESTARTING,
    (State.REINITIALIZING, StopRequested): State.STOPPING,
    # A process may become ready, or fail to, just before it receives the stop.
    (State.STOPPING, Ready): State.STOPPING,
    (State.STOPPING, Exited): State.STOPPED,
    (State.STOPPING, StartFailed): State.STOPPED,
    (State.STOPPING, StopRequested): State.STOPPING,
    # The stop came while a process was being started.
    (State.STOPPED, Started): State.STOPPING,
    (State.STOPPED, StartFailed): State.STOPPED,
    (State.STOPPED, Postponed): State.STOPPED,
    (State.STOPPED, StopRequested): State.STOPPED,
    (State.FAILED, StopRequested): State.FAILED,
}


class Supervisor:
    """The restart policy of one instance. `state` is for display and assertions."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.state = State.NEW
        self._limits = limits or Limits()
        self._deaths = 0
        self._wait_s = 0.0
        self._postponed_s = 0.0
        self._ready_at: float | None = None

    def handle(self, event: Event, now: float) -> list[Command]:
        """Handle an event at `now`, in seconds. Returns the commands to perform, in this order.

        Raises LocalError, and changes nothing, if the event cannot happen in this state.
        """
        old, new = self.state, NEXT.get((self.state, type(event)))
        if new is None:
            raise LocalError(f"{type(event).__name__} is not legal while {old.name}")
        self.state = new
        match event:
            case Exited(was_overdue=True) if new is State.RESTARTING:
                return [Restart(0.0)]
            case Exited(exit=exit) if new is State.RESTARTING:
                return self._after_death(exit.describe(), now)
            case StartFailed(error=error) if new is State.RESTARTING:
                return self._after_death(error, now)
            case Postponed() if new is State.RESTARTING:
                limits = self._limits
                self._postponed_s = min(max(limits.backoff_s_first, 2 * self._postponed_s), limits.postponed_s_max)
                return [Restart(self._postponed_s)]
            case Started():
                self._postponed_s = 0.0
            case Ready():
                self._ready_at = now
            case StopRequested() if old is State.RESTARTING:
                return [CancelRestart()]
        if new is State.STOPPING and old is not State.STOPPING:
            return [Stop()]
        return []

    def __repr__(self) -> str:
        return f"<Supervisor {self.state.name} [{self._deaths} deaths in a row]>"

    def _after_death(self, cause: str, now: float) -> list[Command]:
        limits = self._limits
        if self._ready_at is not None and now - self._ready_at >= limits.healthy_s:
            self._deaths = 0
        self._ready_at = None
        self._deaths += 1
        if self._deaths == 1:
            self._wait_s = 0.0
        elif self._deaths < limits.deaths_max:
            self._wait_s = min(max(limits.backoff_s_first, 2 * self._wait_s), limits.backoff_s_max)
        elif self._deaths == limits.deaths_max:
            self._wait_s = limits.down_s_first
        else:
            self._wait_s = min(2 * self._wait_s, limits.down_s_max)
        if self._deaths < limits.deaths_max:
            return [Restart(self._wait_s)]
        reason = (
            f"its process died {self._deaths} times without being ready for {limits.healthy_s:g} s in between, so it is"
            f" started again after longer and longer waits; the last time: {cause}"
        )
        return [TakeDown(reason), Restart(self._wait_s)]
