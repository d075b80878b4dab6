# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Planted bugs: each patches the product in this process, and the simulator has to find it.

A mutation is a function that puts itself in the place of something of the product. To add one, write the function, and
give the mark `planted` the place that it takes.
"""

import asyncio
from collections import deque
from contextlib import ExitStack, contextmanager
from unittest import mock

from pyruntime.runtime.app.state import ServerState
from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.leases import GpuLeases
from pyruntime.runtime.brokers.link import BrokerLink
from pyruntime.runtime.brokers.pool import ChunkPool
from pyruntime.runtime.caching.requests import CachedRequests
from pyruntime.runtime.caching.streams import StreamKeeper
from pyruntime.runtime.calls.tensors import HeldResponse
from pyruntime.runtime.ensembles.credits import StepCredits
from pyruntime.runtime.ensembles.request import EnsembleRequest
from pyruntime.runtime.ensembles.tensors import Source
from pyruntime.runtime.execution.states import SequenceStates
from pyruntime.runtime.frontends.grpc.call import Call
from pyruntime.runtime.frontends.grpc.stream_infer_call import StreamInferCall
from pyruntime.runtime.frontends.http.connection import HttpConnection
from pyruntime.runtime.frontends.http.exchange import Exchange
from pyruntime.runtime.frontends.http.generate_exchange import GenerateStreamExchange
from pyruntime.runtime.frontends.http.model_exchange import ModelExchange
from pyruntime.runtime.inference.gpu_use import GpuUse
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.inference.pending_bytes import PendingBytes
from pyruntime.runtime.instances.inflight import InflightBatches
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.instances.stub.execution_timer import ExecutionTimer
from pyruntime.runtime.instances.stub.instance import PythonInstance
from pyruntime.runtime.instances.stub.regions import StubRegions
from pyruntime.runtime.instances.stub.returns import Returns
from pyruntime.runtime.instances.stub.streams import Streams
from pyruntime.runtime.instances.stub.supervisor import Supervisor
from pyruntime.runtime.loaders.warmup import WarmUp
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestSlot
from pyruntime.runtime.regions import GpuRegion
from pyruntime.runtime.repository.fingerprint import Fingerprint
from pyruntime.runtime.requests.types import InferResponse
from pyruntime.runtime.scheduling import response_order
from pyruntime.runtime.scheduling.batcher import Batcher
from pyruntime.runtime.scheduling.policy_queue import PolicyQueue
from pyruntime.runtime.scheduling.response_order import ResponseOrder, _Turn
from pyruntime.runtime.scheduling.scheduler import Scheduler
from pyruntime.runtime.scheduling.sequences import Sequences

MUTATIONS = {}


def planted(place, name, needs="", first=0):
    """Register a function that takes the place of `place.name`; what it replaces is its first argument.

    `needs` is a feature of the scenarios that can find it, see Scenario.features: others are not run.
    `first` is the seed to begin with, if those before do not find it.
    """

    def register(mutation):
        original = getattr(place, name)

        @contextmanager
        def applied():
            with ExitStack() as stack:
                made = mutation(original)
                stack.enter_context(mock.patch.object(place, name, made))
                yield

        MUTATIONS[mutation.__name__] = applied, needs, first
        return mutation

    return register


@planted(Scheduler, "capacity_freed")
def dropped_wake_up(original):
    """A free instance does not take the next batch."""
    return lambda self: None


@planted(StepCredits, "give_back", "ensemble")
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


@planted(PolicyQueue, "_take_of_many", "batched")
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


@planted(Returns, "credit", "decoupled")
def lost_credit(original):
    """A sender does not learn that its client has taken a response."""
    return lambda self, serial, size: None


@planted(CachedRequests, "_looked", "cached")
def lookup_without_end(original):
    """A request waits for the cache for ever."""
    return lambda self, job, begun_ns, done: None


@planted(ResponseOrder, "begin")
def responses_out_of_order(original):
    """Responses are not held for their turn."""
    return lambda self, job: None


@planted(_Turn, "__call__", "decoupled")
def held_response_is_not_taken(original):
    """A response that is held for its turn keeps its place in the window of its sender, who waits."""

    def call(self, outcome, final):
        if isinstance(outcome, InferResponse):
            outcome.take = lambda: None  # the release counts instead
        original(self, outcome, final)

    return call


@planted(ResponseOrder, "is_full", "iterative")
def held_responses_stop_the_first_request(original):
    """While many responses are held the request that they wait for does not begin again."""
    return property(lambda self: self._held >= response_order.HELD_MAX)


@planted(Source, "end_use", "ensemble")
def tensor_is_freed_early(original):
    """The memory of a tensor between two steps is freed when the first reader has ended."""

    def end_use(self):
        self._uses = min(self._uses, 1)
        original(self)

    return end_use


@planted(Sequences, "_vacate", "sequence")
def leaked_sequence_slot(original):
    """A sequence that ends leaves its slot occupied."""

    def vacate(self, sequence):
        place, sequence.place = sequence.place, None
        if place is not None:
            del place.sequences[sequence]

    return vacate


@planted(Sequences, "readiness", "sequence")
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


@planted(SequenceStates, "update_all", "stateful")
def lost_state(original):
    """The states that a model returns are not kept for the next request."""
    return lambda self, outputs, memory: None


@planted(Streams, "open", "stateful")
def memory_is_freed_within_execute(original):
    """The memory of a request that reads states is freed with its last response, while execute reads on."""

    def open_(self, serial, job, sent_ns, number):
        original(self, serial, job, sent_ns, number)
        if job.states is not None:
            self.by_serial[serial].owns_memory = True

    return open_


@planted(ExecutionTimer, "begin", "execution limit")
def no_execution_is_overdue(original):
    """Executions may take any time."""
    return lambda self: None


@planted(PythonInstance, "drop_sequences", "sequence")
def nobody_is_told_to_drop(original):
    """A model does not learn that a sequence is abandoned."""
    return lambda self, ids: None


@planted(StreamKeeper, "_pass", "streamed")
def cut_stream_is_kept(original):
    """A stream that ended early, because its client had left, is replayed to others."""

    def pass_on(self, outcome, final):
        cancelled, self._job.cancelled = self._job.cancelled, False
        original(self, outcome, final)
        self._job.cancelled = cancelled

    return pass_on


@planted(WarmUp, "run", "warmed")
def restarted_without_warm_up(original):
    """An instance that was restarted takes requests before it has executed its samples."""

    async def run(self, instance, batches, concurrency):
        if not instance.restarts:
            await original(self, instance, batches, concurrency)

    return run


@planted(Fingerprint, "differs_in_instances_only", "regroups")
def loaded_again_for_instances(original):
    """A version ends because its model is to have other instances."""
    return lambda self, other: False


@planted(ModelVersion, "exchange", "regroups")
def forgotten_new_instance(original):
    """The instances that a version gets while it serves take no requests."""

    def exchange(self, spec, instances):
        return original(self, spec, [each for each in instances if each in self.instances] or instances)

    return exchange


@planted(HttpConnection, "answered", "http")
def http_answers_out_of_order(original):
    """A response is sent although earlier requests of its connection have none."""

    def answered(self):
        self.exchanges = deque(sorted(self.exchanges, key=lambda exchange: exchange.parts is None))
        original(self)

    return answered


@planted(Exchange, "_end_claim", "http")
def pending_bytes_leak(original):
    """What a body took of the budget is not given back."""

    def end_claim(self):
        self._claim = None
        original(self)

    return end_claim


@planted(PendingBytes, "_grant", "http", 1300)
def nobody_gets_room(original):
    """Those who wait for room do not learn that there is some."""
    return lambda self: None


@planted(HttpConnection, "resume_writing", "http")
def unread_response_blocks_the_next(original):
    """A connection whose client did not read for a while stays silent."""

    def resume_writing(self):
        self._write_paused = False
        self._end_stall()
        self._release_drained()

    return resume_writing


@planted(HttpConnection, "take_slice", "http")
def lost_slice(original):
    """A connection whose requests wait for a later turn is forgotten."""
    return lambda self: None


@planted(ServerState, "end_request", "http")
def request_is_never_over(original):
    """The server does not notice that a request is answered."""
    return lambda self: None


@planted(Call, "cancelled", "grpc")
def reset_call_goes_on(original):
    """A call that its client has reset stays with its connection."""
    return lambda self: None


@planted(StreamInferCall, "respond", "stream")
def stream_answers_out_of_order(original):
    """Responses of a model that is not decoupled go over a stream as they come."""

    def respond(self, request, outcome, final):
        request.in_order = False
        original(self, request, outcome, final)

    return respond


@planted(StreamInferCall, "_end_if_done", "stream")
def stream_ends_before_its_answers(original):
    """A stream ends as soon as its client sends nothing more."""

    def end_if_done(self):
        if self._client_ended:
            self._requests = set()
        original(self)

    return end_if_done


@planted(HttpConnection, "_must_wait_for_answers", "generate", first=1800)
def stream_begins_before_its_turn(original):
    """A stream begins although requests before it on its connection are not answered."""
    return lambda self: False


@planted(GenerateStreamExchange, "_take_response", "generate", first=5000)
def event_is_lost(original):
    """An event is dropped if the one before still waits for the client."""

    def take_response(self, outcome, final):
        if self._waiting and not final:
            outcome.release()
        else:
            original(self, outcome, final)

    return take_response


@planted(GenerateStreamExchange, "abandon", "generate")
def unsent_events_are_kept(original):
    """Responses that wait for a client which has left are never released."""
    return ModelExchange.abandon


@planted(Supervisor, "_after_death")
def no_restart(original):
    """A stub that dies is not started again."""
    return lambda self, cause, now: []


@planted(BrokerLink, "write", "gpu")
def response_before_its_copy(original):
    """An output counts as copied to the GPU as soon as the broker is asked for it."""

    def write(self, *arguments):
        original(self, *arguments)
        done = asyncio.get_running_loop().create_future()
        done.set_result(0)
        return done

    return write


@planted(BrokerLink, "_lost", "gpu")
def copy_fails_before_its_broker_ends(original):
    """What a lost broker owes fails while it may still copy."""

    def lost(self, reason):
        self._fail(reason)
        original(self, reason)

    return lost


@planted(BrokerLink, "_copy", "gpu")
def memory_is_not_opened_again(original):
    """A broker is to copy memory that only the one before it was told to open."""

    def copy(self, verb, memory, *others):
        self._opened.add(memory.number)
        return original(self, verb, memory, *others)

    return copy


@planted(Brokers, "of", "gpu")
def lost_broker_is_kept(original):
    """No other broker is started for one that was lost."""

    async def of(self, gpu):
        return self._links.get(gpu.ordinal) or await original(self, gpu)

    return of


@planted(BrokerLink, "_on_silence", "gpu")
def silence_is_not_noticed(original):
    """A broker that does not answer is waited for without end."""
    return lambda self: None


@planted(BrokerLink, "revoke", "gpu")
def region_is_not_revoked(original):
    """A broker keeps the memory of a region that is closed."""

    def revoke(self, region):
        region.holders.discard(self)
        self._granted.discard(region)

    return revoke


@planted(BrokerLink, "_close_peer", "gpu")
def memory_of_another_broker_stays_open(original):
    """A broker keeps memory open that another one leases again, or frees."""
    return lambda self, region: region.left(self)


@planted(GpuLeases, "pull", "gpu")
def copy_is_complete_when_it_is_asked_for(original):
    """A tensor is read on another GPU before its copy is there."""

    async def pull(self, *arguments):
        self.pulling = asyncio.ensure_future(original(self, *arguments))
        self.pulling.add_done_callback(lambda task: task.cancelled() or task.exception())

    return pull


@planted(GpuPeers, "_free", "gpu")
def copies_are_kept(original):
    """Memory on a GPU stays leased for copies that nobody reads."""
    return lambda self, chunk, offset: None


@planted(Brokers, "close_memory", "gpu")
def memory_stays_open(original):
    """Memory that is unregistered stays open on the GPU."""
    return lambda self, gpu, memory: None


@planted(GpuUse, "end", "gpu")
def use_of_memory_never_ends(original):
    """A request counts on the memory of its client for ever."""
    return lambda self: None


@planted(ClientMemory, "_cuda_unused", "gpu")
def unregistered_memory_is_kept(original):
    """Memory that was unregistered while a request used it stays registered."""
    return lambda self, region: None


@planted(GpuRegion, "left", "gpu")
def memory_of_ended_stub_is_leased(original):
    """Memory that a stub leased is not given back with its end."""
    return lambda self, holder: None


@planted(GpuRegion, "close", "gpu")
def memory_is_leased_while_it_is_read(original):
    """Memory on a GPU is leased to another stub when the first who counts on it lets go."""

    def close(self):
        original(self)
        self.lessor.unused(self)

    return close


@planted(ChunkPool, "give_back", "gpu")
def pool_keeps_everything(original):
    """Memory that nobody leases stays with the broker, however much it is."""

    def give_back(self, chunk):
        self._kept[chunk] = self._leased.pop(chunk)
        return []

    return give_back


@planted(EnsembleRequest, "places_on_gpu", "gpu")
def output_stays_for_whoever_reads(original):
    """The output of a step stays on the GPU, wherever the steps behind it read it."""
    return lambda self, step: self._callees[step.index].on_gpus.outputs


@planted(StubRegions, "grant", "gpu")
def memory_without_handle(original):
    """A stub is given tensors in memory on a GPU that it cannot open."""

    def grant(self, region):
        if not isinstance(region, GpuRegion):
            original(self, region)

    return grant


@planted(HeldResponse, "release", "gpu")
def dropped_answer_stays(original):
    """The memory of the answer to a call is never free again."""
    return lambda self: None
