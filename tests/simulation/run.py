# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Runs one scenario from beginning to end."""

import asyncio
import hashlib
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from pyruntime.utils.errors import InferenceError

from .clients import KEPT_S_MAX, Client
from .generate_clients import GenerateClient
from .gpu_clients import GpuClient
from .grpc_clients import GrpcClient
from .grpc_streams import GrpcStreamClient
from .http_clients import HttpClient
from .ledger import Violation
from .loop import SimulatedLoop, Stuck
from .regions import Memory
from .scenarios import scenario_of
from .stage import stage
from .world import World

REGION_BYTES = 1 << 16
# A scenario that takes longer than this, in virtual seconds, does not end.
SCENARIO_S_MAX = 3600.0
# The numbers of requests of a client are together, and those of different clients are not.
REQUESTS_OF_A_CLIENT = 1000
# The numbers of clients with connections begin here.
WIRES_FROM = 10
WIRED = {
    "http": HttpClient,
    "grpc": GrpcClient,
    "generate": GenerateClient,
    "stream": GrpcStreamClient,
    "gpu": GpuClient,
}


@dataclass(slots=True)
class Outcome:
    """The result of a scenario: `problem` is the invariant that it broke, or ""; `trace` is all that happened."""

    seed: int
    problem: str = ""
    trace: list = field(default_factory=list)

    @property
    def digest(self):
        """Two runs of one seed have the same."""
        return hashlib.sha256(repr(self.trace).encode()).hexdigest()


def run_seed(seed):
    """Run the scenario of a seed."""
    with stage() as here:
        return play(here, seed)


def problems(seeds, needs=""):
    """The problems of scenarios, each with its seed and as soon as it is found; of those with a feature, if `needs`."""
    with stage() as here:
        for seed in seeds:
            if (not needs or needs in scenario_of(seed).features) and (problem := play(here, seed).problem):
                yield seed, problem


def play(here, seed):
    """Run the scenario of a seed on a stage, and free its memory."""
    outcome = Outcome(seed)
    failures = []
    _play(here, outcome, failures)
    here.clean()
    if failures:  # what else is wrong mostly follows from the first
        outcome.problem = f"an exception that nobody expects: {failures[0]}"
    return outcome


def _play(here, outcome, failures):
    clock = here.clock
    clock.begin()
    trace = outcome.trace

    def note(*what):
        trace.append((clock.now_ns, *what))

    world = World(scenario_of(outcome.seed), clock, Memory(REGION_BYTES), note)
    loop = SimulatedLoop(clock, world.ledger.violations, world.ledger.check, world.rest, world.connect)
    loop.set_exception_handler(lambda _, context: failures.append(context))
    with here.plays(world, failures):
        try:
            loop.run_until_complete(_scenario(world))
            world.end()
        except Stuck:
            outcome.problem = f"nothing happens any more: {_tasks(loop)}"
        except Violation as violation:
            outcome.problem = str(violation)
        except TimeoutError:
            outcome.problem = f"the scenario does not end: {_tasks(loop)}"
        except BaseExceptionGroup as group:
            outcome.problem = f"an exception ends the server: {_first(group)!r}"
        finally:
            expected = len(failures)
            world.kill()
            loop.abandon()
            del failures[expected:]


async def _scenario(world):
    """All clients at once, then the end of the server."""
    async with asyncio.timeout(SCENARIO_S_MAX), asyncio.TaskGroup() as tasks:
        await world.open(tasks)
        events = Events(world, tasks)
        for event in world.plan.events:
            world.loop.call_later(event.at_s, events.happen, event)
        async with asyncio.TaskGroup() as clients:
            for number, plan in enumerate(world.plan.wires):
                first = (WIRES_FROM + number) * REQUESTS_OF_A_CLIENT
                wired = WIRED[plan.protocol](world, Random(plan.seed), world.models[plan.model], first)
                clients.create_task(wired.run(), name=f"{plan.protocol} client {number}")
            for number, plan in enumerate(world.plan.clients):
                client = Client(world, plan, (number + 1) * REQUESTS_OF_A_CLIENT)
                clients.create_task(client.run(), name=f"client {number}")
        world.note("clients are done")
        await world.close()
        await asyncio.sleep(KEPT_S_MAX)


class Events:
    """What happens to the server, beside its clients."""

    def __init__(self, world, tasks):
        self._world = world
        self._tasks = tasks

    def happen(self, event):
        """The time of an event has come."""
        if not self._world.is_over:
            getattr(self, event.what)(event)

    def memory_runs_out(self, event):
        """There is no shared memory for a while."""
        self._world.memory.is_out = True
        self._world.loop.call_later(event.amount, self._memory_is_back)

    def _memory_is_back(self):
        self._world.memory.is_out = False

    def time_stands_still(self, event):
        """The server does not run for a while, as on a machine that was suspended."""
        self._world.clock.advance(event.amount)

    def wall_clock_jumps(self, event):
        """Somebody sets the clock."""
        self._world.clock.wall_jump_ns -= int(event.amount * 1e12)

    def reloads(self, event):
        """A model is loaded again while it serves."""
        self._tasks.create_task(self._world.reload(event.model), name=f"load {event.model}")

    def regroups(self, event):
        """The instance groups of a model change while it serves."""
        self._tasks.create_task(self._world.regroup(event.model), name=f"regroup {event.model}")

    def unloads(self, event):
        """A model is unloaded while it serves."""
        self._tasks.create_task(_refusable(self._world.unload(event.model)), name=f"unload {event.model}")

    def kills(self, event):
        """All instances of a model are killed."""
        with suppress(InferenceError):  # it does not serve
            self._world.table.resolve(event.model).kill()


async def _refusable(step):
    """A request to the server that may come when it ends."""
    with suppress(InferenceError):
        await step


def _tasks(loop):
    return ", ".join(sorted(task.get_name() for task in asyncio.all_tasks(loop)))


def _first(group):
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
