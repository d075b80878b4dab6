# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A server without processes and sockets: the real models, schedulers, instances and loaders over simulated stubs.

What is real: ModelVersion, the schedulers and their policies, PythonInstance with its supervisor and its connection,
calls between models, ensembles with their credits, the response cache, request memory, the lifecycle of versions, and
the loaders of Python models and ensembles.
"""

import asyncio
from collections import defaultdict
from dataclasses import replace
from random import Random

from pyruntime.runtime.caching.local import LocalCache
from pyruntime.runtime.frontends.listeners import Listeners
from pyruntime.runtime.gpus.available import AvailableGpus
from pyruntime.runtime.inference.intake import Intake
from pyruntime.runtime.inference.threads import THREADS_MAX
from pyruntime.runtime.instances.stub.link import LINKS_TURN_S
from pyruntime.runtime.loaders.ensemble import EnsembleLoader
from pyruntime.runtime.loaders.model_loader import ModelLoader
from pyruntime.runtime.loaders.python import PythonLoader
from pyruntime.runtime.loaders.version_loader import VersionFactory, limit
from pyruntime.runtime.memory.clients import ClientMemory
from pyruntime.runtime.memory.gpu_peers import GpuPeers
from pyruntime.runtime.memory.requests import RequestMemory
from pyruntime.runtime.repository.backends import Backend
from pyruntime.runtime.repository.control import ModelControl
from pyruntime.runtime.repository.fingerprint import Fingerprint
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.repository.live import LiveVersions
from pyruntime.runtime.repository.request import Found, Sight
from pyruntime.runtime.rounds import Rounds
from pyruntime.runtime.settings import ResourceLimit, ServerSettings
from pyruntime.utils.errors import InferenceError

from ..runtime.server_states import new_state
from .behaviour import Behaviour
from .brokers import KEPT_BYTES, Devices
from .catalogue import RESOURCE, RESOURCE_LIMIT, changed
from .executors import SimulatedExecutor
from .gpu_tensors import drawn
from .ledger import Ledger
from .lessees import WatchedLeases
from .stubs import SimulatedStub
from .transport import StubTransport
from .wires import Wire

SETTINGS = ServerSettings(("/simulated",), auto_complete_config=False, model_control_mode="explicit")
LIMITED = replace(SETTINGS, limits_rate=True, rate_limit_resources=(ResourceLimit(RESOURCE, RESOURCE_LIMIT),))
# The growth of request memory, in bytes.
GROWTH_BYTES = 1 << 14
# How long the last connections take to close, in seconds.
LAST_CLOSES_S = 0.01
# The limit for strings of clients, of which there are none.
CLIENT_STRINGS_BYTES = 1000
# What a look at the clock takes, where the length of a turn counts, in seconds.
TICK_S = 0.002
# How long after its time a model may learn that a sequence is abandoned, in nanoseconds.
DROP_BOUND_NS = 10_000_000
# An execution that is overdue ends this much after its limit at the latest, and the time that the server stands still.
LIMIT_BOUND_NS = 100_000_000
# How often that is looked at, at most, in nanoseconds.
HELD_CHECK_NS = 1_000_000
# How long a version may take for the requests that it has when it is unloaded, in seconds: longer than the server has
# patience with a client that does not read, for which a model waits.
DRAIN_S = 45.0


class World:
    """See the module. It lives in one loop, from `open` to the end of `close`."""

    def __init__(self, plan, clock, memory, note):
        self.plan = plan
        self.clock = clock
        self.memory = memory
        self.note = note
        self.models = {model.name: model for model in plan.models}
        self.ledger = Ledger(clock, note, plan.is_faultless)
        # All stubs, by the link of the host, and, with native executors, by the batches that they get.
        self.connected = {}
        self.stubs = {}
        self.is_over = False
        # The versions of models with sequences, and when they are looked at again.
        self.sequential = []
        self._held_check_ns = 0
        # The batches of executors without a stub.
        self.native = []
        self._lives = 0
        # How often the files of a model have changed.
        self._stamps = {}
        # How often a model went to another GPU, and what decides that.
        self._moves = {}
        self._coins = Random(f"{plan.seed} moves")
        # How many instances the first group of a model has, where that was changed.
        self._counts = {}
        # How many responses a stub has sent to a request, for each stream that it has ended by itself: by the model and
        # the request.
        self.stream_lengths = defaultdict(set)
        self._launched = None
        self.loop = None
        self.tasks = None
        # The server as its frontends see it, and they; None in scenarios without wires.
        self.state = self.listeners = None
        self.is_closing = False
        # Those of the links to stubs.
        self.link_rounds = None
        self._ticks = 0
        # The GPUs, and the host's ends of their brokers.
        self.devices = Devices(self)
        self.links = []
        # The memory there that stubs lease; None in scenarios without GPUs.
        self.gpus = None
        # What copies between GPUs; None in scenarios without GPUs.
        self.peers = None

    # What is simulated in place of processes and memory.

    def version_of(self, batches):
        """The version that gives these batches."""
        return next(version for version in self.ledger.books if version.scheduler is batches._owner)

    async def launch(self, handover, environment):
        """See launch.launch_stub."""
        draw = self._life()
        threads = Random(f"{self.plan.seed} threads {self._lives}")
        await asyncio.sleep(draw.random() * 0.005)
        if draw.random() < self.plan.launches_fail:
            raise OSError(11, "no more processes in this simulation")
        behaviour = Behaviour(draw, self.plan.faults, self.plan.errors, threads)
        stub = SimulatedStub(self, handover.name, behaviour)
        self._launched = stub, handover.sock.dup(), self.memory.open[handover.responses_fd]
        self.note("launched", handover.name)
        return stub.process

    def connect(self, protocol, sock):
        """The transport to the stub that was launched just before."""
        stub, rest, responses = self._launched
        transport = StubTransport(self.clock, self.loop, self._life(), stub, rest)
        transport.serve(protocol)
        sock.take = transport.take
        self.connected[protocol] = stub
        self.loop.call_later(0, stub.connected, transport, responses)
        return transport

    def _life(self):
        """The stream of random numbers of the next stub or connection."""
        self._lives += 1
        return Random(self.plan.seed * 1_000_003 + self._lives)

    # The server.

    async def open(self, tasks):
        """Load all models, one after the other, with those that they need first."""
        self.loop = asyncio.get_running_loop()
        self.link_rounds = Rounds(self.ticks, self.loop.call_soon, LINKS_TURN_S)
        self.tasks = tasks
        self.table = LifecycleTable()
        self.live = LiveVersions(self.table, tasks, DRAIN_S)
        brokers = self.devices.new_brokers()
        if "gpu" in self.plan.features:
            sizes = dict.fromkeys(range(len(self.devices.gpus)), KEPT_BYTES)
            self.gpus = WatchedLeases(self, brokers, sizes, Random(f"{self.plan.seed} reads"))
            self.peers = GpuPeers(self.gpus, tasks)
        self.cache = LocalCache("local", {"size": "4096"})
        await self.cache.open()
        settings = LIMITED if self.plan.limits_rate else SETTINGS
        factory = SimulatedFactory(settings, self.cache, self.live.lost)
        python = PythonLoader(settings, "/simulated", tasks, self, factory)
        ensemble = EnsembleLoader(self.table.resolve, self, factory)
        loaders = {"python": python, "native": NativeLoader(self, factory), "ensemble": ensemble}
        self.loader = SimulatedLoader(("/simulated",), loaders.__getitem__, 0)
        self.control = ModelControl(settings, self.table, self.live, self.loader, tasks, None)
        await self.control.start(self.control_names())
        self.note("loaded", sorted(self.table.serving))
        if self.plan.wires:
            await self._open_frontends(settings, brokers)

    def control_names(self):
        """The models to load at the start."""
        return list(self.models)

    async def reload(self, name):
        """Load a model again, whose files have changed, and perhaps its GPU. If that fails, what serves stays."""
        self._stamps[name] = self._stamps.get(name, 0) + 1
        self._moves[name] = self._moves.get(name, 0) + self._coins.randrange(2)
        try:
            await self.control.load(name)
        except InferenceError as exc:
            self.note("not loaded", name, int(exc.code))
        else:
            self.note("loaded again", name)

    async def regroup(self, name):
        """Load a model with one more instance, or one less, perhaps on another GPU. Its versions serve on."""
        model, before = self.models[name], self.version(name)
        if not model.spec.instances or model.kind == "native":
            return
        count = self._counts.get(name, model.draft.config.instance_group[0].count)
        self._counts[name] = count + 1 if count == 1 else count - 1
        self._moves[name] = self._moves.get(name, 0) + self._coins.randrange(2)
        try:
            await self.control.load(name)
        except InferenceError as exc:
            self.note("not regrouped", name, int(exc.code))
            return
        self.note("regrouped", name, self._counts[name])
        is_alone = self.plan.is_faultless and before is not None and "reloads" not in self.plan.features
        if is_alone and self.version(name) is not before:
            self.ledger.violated(f"{name} is loaded again for other instance groups")

    def version(self, name):
        """The version of a model that serves, None if none does."""
        return self.table.serving.get((name, 1))

    async def unload(self, name):
        """Unload a model; its requests end in the background."""
        self.note("unloads", name)
        await self.control.unload(name)

    async def _open_frontends(self, settings, brokers):
        settings = replace(settings, max_pending_bytes=self.plan.pending_bytes, allow_metrics=False)
        self.state = new_state(settings, tasks=self.tasks, table=self.table, control=self.control)
        self.state.rounds = Rounds(self.ticks, self.state.soon)
        self.state.client_memory = ClientMemory(True, CLIENT_STRINGS_BYTES, brokers)
        self.state.intake = Intake(self.state.resolve, self.state.tracer, lambda: self.tasks, self.peers)
        self.state.loaded = True
        self.listeners = Listeners(self.state)
        await self.listeners.open()
        self.ports = {"HTTP": settings.http_port, "gRPC": settings.grpc_port}

    def dial(self, client, draw, room):
        """Connect a client. Returns its wire."""
        wire = Wire(self, draw, client, room)
        wire.connect(self.loop.listening[self.ports[client.protocol]]())
        return wire

    def ticks(self):
        """A clock of seconds that goes on whenever it is looked at: work takes time."""
        self._ticks += TICK_S
        return self.clock.monotonic() + self._ticks

    async def close(self):
        """End the server, as app/server.py does."""
        self.is_closing = True
        await self.control.close()
        if self.state is not None:
            self.listeners.shut_down()
            await self.state.drain(DRAIN_S)
            self.listeners.close()
        await self.live.stop(DRAIN_S)
        await self.cache.close()
        if self.state is not None:
            await self.listeners.finish()
            await asyncio.sleep(LAST_CLOSES_S)
            self._check_frontends()
            if self.links:
                await self.devices.settle()
                self.devices.check_quiet(self.state.client_memory)
            self.devices.is_closing = True
            await self.state.client_memory.close()

    def _check_frontends(self):
        """Nothing of any client may be left."""
        state, violated = self.state, self.ledger.violated
        if state.in_flight:
            violated(f"{state.in_flight} requests of clients are in flight when all is over")
        if state.pending_bytes.used:
            violated(f"{state.pending_bytes.used} bytes of clients are pending when all is over")
        if state.turns.free != THREADS_MAX:
            violated(f"{THREADS_MAX - state.turns.free} requests have their turn when all is over")
        if state.intake.expected_bytes:
            violated(f"{state.intake.expected_bytes} bytes of bodies are expected when all is over")
        if any(self.listeners.connections().values()):
            violated(f"connections are open when all is over: {self.listeners.connections()}")

    def look(self, name, request, standing, files, settings):
        """See repository/request.py."""
        draft = self._draft(name)
        return Sight(draft.folder, draft.config, None)

    def read(self, sight, settings, gpus, kept_gpus):
        """See repository/request.py. No instance is on a GPU by its configuration."""
        name = sight.folder.name
        stamp = self._stamps.get(name, 0).to_bytes(4, "little")
        groups = bytes((self._counts.get(name, 0), self._moves.get(name, 0) % 2))
        return Found(self._draft(name), {1: Fingerprint("", b"", b"", stamp, groups)})

    def _draft(self, name):
        """A model as its folder has it now."""
        model, where = self.models[name], self.where(name)
        draft = changed(model, self._counts.get(name), *(where or (None, False)), self.limit_ms(model))
        return draft if self.gpus is None else replace(draft, gpus=AvailableGpus(tuple(self.devices.gpus)))

    def limit_ms(self, model):
        """How long an execution of a model may take, 0 for any time."""
        return self.plan.limit_ms if model.may_be_limited else 0

    def where(self, name):
        """Where a model has its tensors on a GPU, None for main memory."""
        is_on_cpu = self.gpus is None or self.models[name].kind in ("native", "ensemble")
        return None if is_on_cpu else drawn(self.plan.seed, name, self._moves.get(name, 0))

    # What models ask of the server: see ModelServer.

    def find(self, name, version):
        return self.table.resolve(name, version)

    def when_ready(self, name, version, caller, call_back):
        raise AssertionError("no simulated model calls another one while it loads")

    def trace_call(self, callee, job, context):
        """Nothing is traced."""

    def ask(self, owner, loading, method, arguments, reply):
        """No simulated model asks anything."""

    def measure(self, owner, metric, operation, value):
        """No simulated model measures anything."""

    def gone(self, owner):
        """A stub has ended."""

    # Invariants over time.

    def begins(self):
        """A stub or an executor begins an execution: together they need no more than there is."""
        if not self.plan.limits_rate:
            return
        used = sum(
            stub.model.needs * len(stub.running)
            for stub in self.connected.values()
            if not stub.has_ended and stub.model
        )
        used += sum(executor.model.needs for executor in self.native if executor.is_running)
        if used > RESOURCE_LIMIT:
            self.ledger.violated(f"executions need {used} of a resource of which there is {RESOURCE_LIMIT}")

    def rest(self):
        """Time is about to pass."""
        self.ledger.rest()
        if self.state is not None:
            self._check_room()
        if self.plan.limit_ms:
            self._check_executions()
        if self.sequential and self.clock.now_ns >= self._held_check_ns:
            self._held_check_ns = self.clock.now_ns + HELD_CHECK_NS
            for version in self.sequential:
                if not self.ledger.books[version].open and self.is_serving(version):
                    self._check_held(version)

    def _check_executions(self):
        """No execution outlives its limit. Those of streams may: their clients may be to blame."""
        stands_still_s = sum(event.amount for event in self.plan.events if event.what == "time_stands_still")
        limit_ns = self.plan.limit_ms * 1_000_000 + LIMIT_BOUND_NS + int(stands_still_s * 1e9)
        for stub in self.connected.values():
            model = stub.model
            if stub.has_ended or model is None or model.is_decoupled or not self.limit_ms(model):
                continue
            for execution in stub.running:
                if 0 not in execution.values and self.clock.now_ns > execution.start_ns + limit_ns:
                    self.ledger.violated(f"{stub} executes batch {execution.number} for longer than it may")

    def _check_room(self):
        """Nobody waits for room that is there."""
        pending = self.state.pending_bytes
        first = next(iter(pending._waiting), None)
        if first is not None and first.fits:
            self.ledger.violated(f"{first} waits, and there is room: {pending}")

    def _check_held(self, version):
        """A model is told in time of a sequence that nobody goes on with."""
        idle_ns = version.spec.sequence_batching.max_idle_us * 1000 + DROP_BOUND_NS
        for executor in version.instances:
            stub = self.stubs.get(executor.inflight)
            if stub is not None and stub.held and stub.is_idle:
                for sequence_id, ended_ns in stub.held.items():
                    if ended_ns is not None and self.clock.now_ns > max(ended_ns, stub.idle_since_ns) + idle_ns:
                        self.ledger.violated(f"{stub} is never told to drop sequence {sequence_id}")

    def check_length(self, model, number, responses):
        """A stream is as long as its model has made it, for this client or for one with the same request before."""
        lengths = self.stream_lengths[model.name, number]
        is_exact = self.plan.faults == 0 and model.is_decoupled and not model.steps
        if is_exact and responses not in lengths:
            self.ledger.violated(
                f"request {number} of {model.name} gets {responses} responses, and not {sorted(lengths)}"
            )

    def is_serving(self, version):
        """Whether clients reach a version."""
        return self.table.serving.get((version.spec.name, version.version)) is version

    def is_limited(self, version):
        """Whether an idle instance may have to wait for a resource."""
        return self.plan.limits_rate and self.models[version.spec.name].needs > 0

    def executes(self, inflight, serial):
        """Whether the stub of these batches executes a request, or has its stream open."""
        stub = self.stubs.get(inflight)
        return stub is not None and not stub.has_ended and stub.executes(serial)

    def idle_since_ns(self, executor):
        """Since when an executor could take a batch, as the executor sees it; None if it cannot."""
        stub = self.stubs.get(executor.inflight)
        is_copying = getattr(executor.inflight, "_arrival", None) is not None
        return None if stub is None or is_copying else stub.idle_since_ns

    def kill(self):
        """End all stubs, because the run has ended."""
        self.is_over = True
        for stub in self.connected.values():
            stub.die(-9)
        self.devices.kill()

    def end(self):
        """The scenario is over: nothing may be left."""
        self.ledger.end()
        for region in self.memory.open.values():
            self.ledger.violated(f"{region} is never closed")
        for stub in self.connected.values():
            if not stub.has_ended:
                self.ledger.violated(f"{stub} never ends")
        self.devices.end()
        self.ledger.check()


class SimulatedFactory(VersionFactory):
    """Makes versions with little memory."""

    def memory(self, draft):
        """See VersionFactory."""
        soon = asyncio.get_running_loop().call_soon
        return RequestMemory(draft.folder.name, GROWTH_BYTES, GROWTH_BYTES, soon)


class SimulatedLoader(ModelLoader):
    """A loader that finds the backend of a model without its folder."""

    def backend_of(self, draft, version):
        """See ModelLoader."""
        identity = draft.identity
        kind = "ensemble" if identity.ensemble is not None else "native" if identity.backend == "cpp" else "python"
        return Backend(kind, kind, "/simulated")


class NativeLoader:
    """Loads models that simulated executors execute: see VersionLoader."""

    def __init__(self, world, factory):
        self._world = world
        self._factory = factory

    async def load(self, draft, version, backend, completed, undo):
        """See VersionLoader."""
        if not completed.done():
            completed.set_result(draft.config)
        memory = self._factory.memory(draft)
        undo.callback(memory.close)
        model = self._factory.version(draft.identity, version, memory)
        world = self._world
        executors = [
            SimulatedExecutor(world, model, process.name, Behaviour(world._life(), 0, world.plan.errors))
            for process in draft.processes
        ]
        limit(self._factory.grants, model, executors, [each.instance for each in draft.processes], undo)
        return model, executors
