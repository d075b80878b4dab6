# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: each patches the product in this process, and the simulator has to find it.

A mutation is a function that puts itself in the place of something of the product. To add one, write the function, and
give the mark `planted` the place that it takes.
"""

from contextlib import ExitStack, contextmanager
from unittest import mock

from pyruntime.runtime.caching.requests import CachedRequests
from pyruntime.runtime.ensembles.credits import StepCredits
from pyruntime.runtime.ensembles.tensors import Source
from pyruntime.runtime.instances.inflight import InflightBatches
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.connection import StubConnection
from pyruntime.runtime.instances.stub.supervisor import Supervisor
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.scheduling.batcher import Batcher
from pyruntime.runtime.scheduling.policy_queue import PolicyQueue
from pyruntime.runtime.scheduling.response_order import ResponseOrder
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.runtime.scheduling.sequences import Sequences

MUTATIONS = {}


def planted(place, name):
    """Register a function that takes the place of `place.name`; what it replaces is its first argument."""

    def register(mutation):
        original = getattr(place, name)

        @contextmanager
        def applied():
            with ExitStack() as stack:
                made = mutation(original)
                stack.enter_context(mock.patch.object(place, name, made))
                yield

        MUTATIONS[mutation.__name__] = applied
        return mutation

    return register


@planted(Scheduler, "capacity_freed")
def dropped_wake_up(original):
    """A free instance does not take the next batch."""
    return lambda self: None


@planted(StepCredits, "give_back")
def credit_is_kept(original):
    """A step that has ended keeps its credit, if another start waits for it."""

    def give_back(self, step):
        return None if self._waiting.get(step) else original(self, step)

    return give_back


@planted(Batcher, "__init__")
def batch_of_one_too_many(original):
    """The limit of a batch is off by one."""

    def init(self, max_batch_size, *others):
        original(self, max_batch_size + 1, *others)

    return init


@planted(PolicyQueue, "deadline")
def time_out_without_timer(original):
    """No timer is set for a deadline, so that a request is rejected when something else happens."""
    return lambda self: None


@planted(Batcher, "wake_at")
def delay_without_timer(original):
    """No timer is set for the end of a delay."""
    return lambda self: None


@planted(InflightBatches, "_fail")
def answered_twice(original):
    """A failure is sent twice."""

    def fail(self, job, failure, now_ns):
        original(self, job, failure, now_ns)
        job.respond(failure, True)

    return fail


@planted(StubBatches, "_recall")
def batch_of_dead_stub_is_lost(original):
    """A batch that a dead stub had not begun does not go back to the queue."""
    return lambda self, batch: None


@planted(PolicyQueue, "put_back")
def put_back_behind_the_others(original):
    """A batch that was not begun goes to the end of the queue."""

    def put_back(self, batch):
        for job in batch:
            self.requeue(job)

    return put_back


@planted(PolicyQueue, "_take_of_many")
def no_ageing(original):
    """A level with requests may be passed over for ever."""

    def take(self, number_of_requests):
        taken = original(self, number_of_requests)
        self._turn = 0
        return taken

    return take


@planted(PolicyQueue, "expire")
def nothing_expires(original):
    """Deadlines are ignored."""
    return lambda self, now: ([], False)


@planted(Scheduler, "cancel")
def lost_cancellation(original):
    """A request that waits is not cancelled."""
    return lambda self, job: None


@planted(StubBatches, "cancel")
def unseen_cancellation(original):
    """The model of a request that is executed does not see that it is cancelled."""
    return lambda self, job: None


@planted(RequestSlot, "free")
def leaked_slot(original):
    """Request memory is not freed."""
    return lambda self: None


@planted(StubConnection, "credit")
def lost_credit(original):
    """A sender does not learn that its client has taken a response."""
    return lambda self, serial, size: None


@planted(CachedRequests, "_looked")
def lookup_without_end(original):
    """A request waits for the cache for ever."""
    return lambda self, job, begun_ns, done: None


@planted(ResponseOrder, "begin")
def responses_out_of_order(original):
    """Responses are not held for their turn."""
    return lambda self, job: None


@planted(Source, "end_use")
def tensor_is_freed_early(original):
    """The memory of a tensor between two steps is freed when the first reader has ended."""

    def end_use(self):
        self._uses = min(self._uses, 1)
        original(self)

    return end_use


@planted(Sequences, "_vacate")
def leaked_sequence_slot(original):
    """A sequence that ends leaves its slot occupied."""

    def vacate(self, sequence):
        place, sequence.place = sequence.place, None
        if place is not None:
            del place.sequences[sequence]

    return vacate


@planted(Sequences, "readiness")
def sequence_survives_its_instance(original):
    """A sequence goes on without its state after its instance has died."""

    def readiness(self, instance, is_ready):
        if not is_ready:
            self._instances[instance].is_ready = False
            for sequence in self._instances[instance].sequences:
                sequence.running = None
            return []
        return original(self, instance, is_ready)

    return readiness


@planted(Supervisor, "_after_death")
def no_restart(original):
    """A stub that dies is not started again."""
    return lambda self, cause, now: []
