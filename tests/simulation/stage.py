# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Puts the simulated parts in the place of the real ones, once for all scenarios that run one after the other.

What is put there asks the stage for the scenario that runs now: replacing parts takes longer than a short scenario.
"""

import gc
import logging
import sys
import time
from contextlib import ExitStack, contextmanager
from itertools import count
from unittest import mock

from pyruntime.runtime import descriptors as descriptors_module
from pyruntime.runtime import regions as regions_module
from pyruntime.runtime import rounds as rounds_module
from pyruntime.runtime.brokers import link as link_module
from pyruntime.runtime.brokers.link import BrokerLink
from pyruntime.runtime.frontends import listeners as listeners_module
from pyruntime.runtime.frontends.grpc import connection as grpc_module
from pyruntime.runtime.frontends.http import connection as http_module
from pyruntime.runtime.frontends.http import infer_exchange as infer_exchange_module
from pyruntime.runtime.frontends.http import response_writer as response_writer_module
from pyruntime.runtime.inference import gpu_use as gpu_use_module
from pyruntime.runtime.inference import pending_bytes as pending_bytes_module
from pyruntime.runtime.inference.model_version import ModelVersion
from pyruntime.runtime.instances.stub import connection as connection_module
from pyruntime.runtime.instances.stub import instance as instance_module
from pyruntime.runtime.instances.stub import link as stub_link_module
from pyruntime.runtime.instances.stub import returns as returns_module
from pyruntime.runtime.instances.stub.batches import StubBatches
from pyruntime.runtime.loaders import python as python_module
from pyruntime.runtime.loaders import version_loader as version_loader_module
from pyruntime.runtime.memory import cuda_regions as cuda_regions_module
from pyruntime.runtime.memory import requests as requests_module
from pyruntime.runtime.repository import loads as loads_module
from pyruntime.runtime.scheduling import policy_queue, response_order
from pyruntime.utils import flow_control
from pyruntime.utils.errors import InferenceError

from .brokers import BrokerDescriptors, BrokerProcesses, BrokerSockets
from .clock import Clock
from .ledger import PASSED_OVER_MAX
from .sockets import SimulatedPipes, SimulatedSockets

# The scenarios between two collections of all garbage.
COLLECTED = 200

# The window of a stream in a stub, in responses, and those that the host holds back of its credits: fewer than in the
# product, so that a short stream exceeds them.
WINDOW = 6
CREDITS_WAITING_MAX = 3
# The responses that are held for their turn, before no further request begins, and of streams, before one fails.
HELD_MAX = 2
HELD_STREAM_RESPONSES_MAX = 20


class Stage:
    """See the module. `world` is that of the scenario that runs, and `failures` are the errors that nobody expects."""

    def __init__(self):
        # The only one: the product keeps some functions of it.
        self.clock = Clock()
        self.world = None
        self.failures = []
        self._cleaned = 0

    @contextmanager
    def plays(self, world, failures):
        """Run the scenario of a world within this."""
        self.world = world
        self.failures = failures
        regions_module._numbers = count(1)
        cuda_regions_module._numbers = count(1)
        try:
            yield
        finally:
            self.world = None

    def clean(self):
        """Collect what a scenario has left, which would otherwise be collected again and again while others run.

        Here an exception is reported that nobody has looked at.
        """
        self._cleaned += 1
        gc.collect(0 if self._cleaned % COLLECTED else 2)

    def log(self, logger, message, *arguments):
        """What the product logs with a traceback is an error of its own."""
        self.failures.append(f"{message % arguments}: {sys.exception()!r}")


STAGE = Stage()


class WatchedVersion(ModelVersion):
    """A version whose jobs the ledger knows."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.world = STAGE.world
        self.world.ledger.open_books(self)
        if self.spec.sequence_batching is not None:
            self.world.sequential.append(self)

    def start(self, job):
        ledger = self.world.ledger
        entry = ledger.begin(self, job)
        entry.queues = self._cached is None
        try:
            super().start(job)
        except InferenceError:
            ledger.refused(entry)
            raise

    def queue(self, job):
        self.world.ledger.queued(self, job)
        super().queue(job)

    def cancel(self, job):
        entry = self.world.ledger.cancelling(self, job)
        super().cancel(job)
        if entry is not None:
            self.world.ledger.cancelled(entry)

    def take_turn(self, job):
        self.world.ledger.takes_turn(self, job)
        super().take_turn(job)


class WatchedBatches(StubBatches):
    """Batches that the ledger knows."""

    def __init__(self, instance_spec, connection, *others):
        super().__init__(instance_spec, connection, *others)
        self._world = STAGE.world
        self._world.stubs[self] = self._world.connected[connection.link]

    def execute(self, batch):
        self._world.ledger.posted(self._world.version_of(self), self, batch)
        super().execute(batch)


class WatchedLink(BrokerLink):
    """The host's end of a broker, of which the world knows. A future is the result of what a thread waits for."""

    def __init__(self, gpu):
        super().__init__(gpu)
        STAGE.world.links.append(self)

    def _wait(self, seconds):
        return self._process.wait_for(seconds)


@contextmanager
def stage():
    """Put everything in its place. Returns the stage."""
    with ExitStack() as stack:

        def put(module, name, value):
            stack.enter_context(mock.patch.object(module, name, value))

        for name in ("monotonic", "monotonic_ns", "time", "time_ns"):
            put(time, name, getattr(STAGE.clock, name))
        put(connection_module, "launch_stub", lambda *arguments: STAGE.world.launch(*arguments))
        put(connection_module, "socket", SimulatedSockets)
        put(stub_link_module, "socket", SimulatedSockets)
        put(connection_module, "os", SimulatedPipes)
        put(connection_module, "create_region", lambda purpose: STAGE.world.memory.create_region(purpose))
        put(requests_module, "create_region", lambda purpose: STAGE.world.memory.create_region(purpose))
        put(gpu_use_module, "create_region", lambda purpose: STAGE.world.memory.create_region(purpose))
        put(regions_module, "_numbers", count(1))
        put(cuda_regions_module, "_numbers", count(1))
        put(link_module, "BrokerLink", WatchedLink)
        put(link_module, "socket", BrokerSockets(STAGE))
        put(link_module, "os", BrokerDescriptors(STAGE))
        put(link_module, "subprocess", BrokerProcesses(STAGE))
        put(version_loader_module, "ModelVersion", WatchedVersion)
        put(instance_module, "StubBatches", WatchedBatches)
        put(loads_module, "look", lambda *arguments: STAGE.world.look(*arguments))
        put(loads_module, "read", lambda *arguments: STAGE.world.read(*arguments))
        put(python_module, "final_spec", lambda draft, config: draft.identity)
        put(python_module, "final_config", lambda config, *others: config)
        # Each of several listeners would have a descriptor.
        put(listeners_module, "LISTENERS", 1)
        put(descriptors_module, "open_count", lambda: 0)
        # Time stands still within a turn, but not for those who ask how much of the turn is left.
        put(http_module, "monotonic", lambda: STAGE.world.ticks())
        put(grpc_module, "monotonic", lambda: STAGE.world.ticks())
        put(stub_link_module, "monotonic", lambda: STAGE.world.ticks())
        put(stub_link_module, "MESSAGES_AT_ONCE", 1)
        put(connection_module, "_rounds_of", lambda loop: STAGE.world.link_rounds)
        put(rounds_module, "AT_ONCE_MAX", 2)
        # Small responses are written without a copy as large ones are, and few clients fill the room for all.
        put(response_writer_module, "JOINED_BYTES_MAX", 200)
        put(infer_exchange_module, "JOINED_BYTES_MAX", 200)
        put(pending_bytes_module, "CONNECTION_SHARE", 1.0)
        put(flow_control, "RESPONSES_AHEAD_MAX", WINDOW)
        put(returns_module, "CREDITS_WAITING_MAX", CREDITS_WAITING_MAX)
        put(response_order, "HELD_MAX", HELD_MAX)
        put(response_order, "HELD_STREAM_RESPONSES_MAX", HELD_STREAM_RESPONSES_MAX)
        put(policy_queue, "PASSED_OVER_MAX", PASSED_OVER_MAX)
        # The product's log has a line for each stub that dies.
        put(logging.Logger, "exception", lambda logger, message, *arguments: STAGE.log(logger, message, *arguments))
        put(logging.Logger, "isEnabledFor", lambda logger, level: False)
        gc.freeze()
        stack.callback(gc.unfreeze)
        gc.disable()
        stack.callback(gc.enable)
        yield STAGE
