# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A simulated stub: it speaks the real protocol with the real code of the host, and runs no model.

It answers each request with the contents of its input, plus HOP for each model on the way, so that every client can
tell whether an answer is the one to its request. It checks what a real model would rely on: that its inputs do not
change, that requests of a sequence come in order to the instance that has its state, that memory is given back once.
"""

import signal
from collections import deque
from random import Random

from pyruntime.runtime.instances.stub.supervisor import ProcessExit
from pyruntime.utils.addresses import split
from pyruntime.utils.arena import Arena
from pyruntime.utils.channel import State, StubChannel
from pyruntime.utils.errors import Code, LocalError, OutOfMemoryError
from pyruntime.utils.flow_control import FlowControl
from pyruntime.utils.messages import (
    NO_SLOT,
    OK,
    PROTOCOL_VERSION,
    SLOT,
    TENSORS,
    Answer,
    Call,
    CheckReady,
    Credit,
    DropSequences,
    Failed,
    Hello,
    Infer,
    IsReady,
    Load,
    LoadFailed,
    MapGpu,
    Ready,
    Release,
    ReleaseHold,
    Reply,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
    UnmapGpu,
    encode_error,
)
from pyruntime.utils.request_codec import (
    MEMORY_CPU,
    MEMORY_GPU,
    SEQUENCE_END,
    SEQUENCE_START,
    RequestOptions,
    WireRequest,
    encode_request,
)

from .gpu_tensors import GpuTensors
from .lessees import Lessee
from .regions import POISON
from .tensors import HOP, pack, request_of, value_of

# A stub that does not end by itself is killed by its guardian this long after it hung up, in seconds.
LINGER_S = 5.0


class Process:
    """The process of a stub: see launch.StubProcess."""

    pid = 1

    def __init__(self, loop, stub):
        self.exited = loop.create_future()
        self._loop = loop
        self._stub = stub
        self._why = ""

    def kill(self, why=""):
        self._why = self._why or why
        self._loop.call_later(0.0001, self._stub.die, -signal.SIGKILL)

    def exit(self, code):
        if not self.exited.done():
            self.exited.set_result(ProcessExit(code, f"by the server: {self._why}" if self._why else ""))


class SimulatedStub:
    """See the module. `behaviour` draws what it does, and `world` has the memory and the ledger of invariants."""

    def __init__(self, world, name, behaviour):
        self.name = name
        self.world = world
        self.loop = world.loop
        self.behaviour = behaviour
        self.process = Process(world.loop, self)
        self.channel = StubChannel()
        self.flow = FlowControl()
        self.has_ended = False
        self.is_deaf = False
        # Whether a message of it is still to come, long after it was due.
        self.is_late = False
        # Whether it has broken the protocol, so that it cannot expect the host to keep it.
        self.is_faulty = False
        self.is_serving = False
        # What it leases on GPUs, if it does.
        self.lessee = self.gpu = None
        if world.gpus is not None:
            self.lessee = Lessee(self, world.devices, Random(behaviour.lease_seed()))
            self.gpu = GpuTensors(self, world.devices, self.lessee)
        self.model = None
        self.requests = self.responses = self.arena = self.transport = None
        self.concurrency = 1
        self.slots = {}
        self.queue = deque()
        self.running = []
        self.streams = {}
        self.calls = {}
        # The value of the latest request of each sequence, that request, its state, and when its latest batch ended.
        self.sequences = {}
        self.latest = {}
        self.states = {}
        self.held = {}
        # How many requests of the warm-up it has executed in this life.
        self.warmed = 0
        self._calls_made = 0
        self._is_stopping = False

    def __repr__(self):
        return f"<SimulatedStub {self.name}>"

    def connected(self, transport, responses):
        """The host has connected itself; `responses` is the region for responses."""
        self.transport = transport
        self.responses = responses
        self.arena = Arena(responses, 1 << 12)
        self.say(Hello(PROTOCOL_VERSION, 1, "3"))

    @property
    def drops(self):
        """Whether its model has the method drop_sequences."""
        return self.model.is_sequence

    @property
    def is_idle(self):
        """Whether it serves, has nothing to do, and nothing is on its way: it could take a batch now."""
        return (
            self.is_serving
            and not self.has_ended
            and not self.is_deaf
            and not self.is_late
            and not self._is_stopping
            and not self.queue
            and not self.running
            and not (self.streams and self.model.states)  # the next request reads what the last response brings
            and not any(stream.warms_up for stream in self.streams.values())
            and self.transport.is_quiet
        )

    @property
    def idle_since_ns(self):
        """Since when it is idle; None if it is not. Whatever makes it so comes or goes as a message."""
        return self.transport.moved_ns if self.is_idle else None

    # The process.

    def die(self, code):
        """The process ends. What it has said arrives, and its end is reported before or after that."""
        if self.has_ended:
            return
        self.has_ended = True
        if self.lessee is not None:
            self.lessee.end()
        self.world.note("stub dies", self.name, code)
        self.transport_hang_up()
        self.loop.call_later(self.behaviour.exit_delay_s(), self.process.exit, code)

    def transport_hang_up(self):
        """Close the socket."""
        if self.transport is not None:
            self.transport.hang_up()

    def linger(self):
        """Hang up, and go on running for a while."""
        self.is_deaf = True
        self.transport_hang_up()
        self.loop.call_later(LINGER_S, self.die, 1)

    def lost(self):
        """The host has hung up."""
        self.loop.call_later(0.001, self.die, 0)

    # Messages.

    def say(self, message):
        """Send a message, unless a fault happens instead."""
        if self.has_ended or self.is_deaf or self.transport.is_closing():
            return
        try:
            data = self.channel.send(message)
        except LocalError:  # it has said Stopped, and the model goes on
            return
        fault = self.behaviour.fault_at(message)
        self.world.note("stub says", self.name, type(message).__name__)
        if fault is None:
            self.transport.say(data)
        else:
            self.world.note("fault", self.name, fault.__name__)
            self.is_faulty = True
            fault(self, message, data)

    def receive(self, data):
        """Bytes of the host."""
        if self.has_ended or self.is_deaf or self.channel.state is State.CLOSED:
            return
        for message in self.channel.receive_data(data):
            if not self.has_ended:
                self._handle(message)

    def _handle(self, message):
        match message:
            case Load(location=location, args=args, concurrency=concurrency, requests_region=number):
                self.model = self.world.models[args["model_name"]]
                if self.gpu is not None:
                    self.gpu.load(self.world.where(self.model.name), location.get("gpu"))
                self.concurrency = concurrency
                self.requests = self.world.memory.open[number]
                self.loop.call_later(self.behaviour.load_s(), self._loaded)
            case Infer():
                self._free(message.released)
                if self.calls and self.concurrency == 1:
                    self.say(Requeue([message.batch]))
                else:
                    self.queue.append(message)
                    self._go_on()
            case Release(released=released):
                self._free(released)
            case Credit(streams=streams):
                for serial, count in streams:
                    self.flow.credit(serial, count)
                    if serial in self.streams:
                        self.streams[serial].go_on()
            case Answer(call=number, response=response, final=final):
                if response is not None and response[SLOT] != NO_SLOT:
                    self._hold(response)
                then = self.calls.pop(number, None) if final else None
                # A call that a faulty stub said twice is answered twice.
                if then is not None:
                    then(response)
                elif final and not self.is_faulty:
                    self.world.ledger.violated(f"{self.name} gets the answer to call {number} twice")
            case DropSequences():
                self.queue.append(message)
                self._go_on()
            case Reply():
                self.lessee.replied(message)
            case MapGpu():
                self.gpu.given(message)
            case UnmapGpu(number=number) if self.lessee is not None:
                if not self.gpu.unmap(number):
                    self.lessee.unmap(number)
            case CheckReady():
                self.say(IsReady(True, ""))
            case Stop():
                self._is_stopping = True
                self._go_on()

    def _loaded(self):
        if self.behaviour.load_fails():
            self.say(LoadFailed("this load was made to fail"))
            self.loop.call_later(0.001, self.die, 1)
        else:
            self.is_serving = True
            self.say(Ready(False, self.drops))
            if self.lessee is not None:
                self.lessee.go_on()

    def _go_on(self):
        while self.queue and len(self.running) < self.concurrency and not self.has_ended:
            if isinstance(self.queue[0], DropSequences):
                if self.running:
                    return  # it comes after the batches before
                for sequence_id in self.queue.popleft().ids:
                    self._drop(sequence_id)
                continue
            execution = Execution(self, self.queue.popleft())
            self.running.append(execution)
            self.world.begins()
            execution.begin()
        if self._is_stopping and not self.queue and not self.running and not self.streams and not self.has_ended:
            self.say(Stopped())
            self.loop.call_later(0.0005, self.die, 0)

    def ended(self, execution):
        """A batch is answered."""
        self.running.remove(execution)
        self._go_on()

    def call(self, model, value, batch, then):
        """Call another model with a value; the running `batch` waits, and batches behind it go back to the host."""
        self._calls_made += 1
        number = self._calls_made
        self.calls[number] = then
        if self.queue:
            waiting, self.queue = self.queue, deque()
            self.say(Requeue([message.batch for message in waiting]))
        data = pack(value, 1)
        tensors = [("IN", "INT64", model.shape(1, 1), data, len(data), MEMORY_CPU, 0)]
        request = encode_request("", RequestOptions(requested_outputs=["OUT"]), tensors)
        self.say(Call(number, model.name, -1, request, False, batch))

    def _hold(self, response):
        """A response to a call lies in memory of others, and stays there until the stub drops it."""
        before = [self._answered(tensor) for tensor in response[TENSORS]]

        def drop():
            if not self.has_ended and not self.is_deaf:
                if [self._answered(tensor) for tensor in response[TENSORS]] != before:
                    self.world.ledger.violated(f"the answer to a call changes while {self.name} holds it")
                self.say(ReleaseHold([response[SLOT]]))

        self.loop.call_later(self.behaviour.execute_s(), drop)

    def _answered(self, tensor):
        """The value of a tensor of an answer."""
        _, _, _, at, size, kind, device = tensor
        if kind == MEMORY_GPU:
            return value_of(self.gpu.answered(at, size, device))
        number, offset = split(at)
        region = self.world.memory.open.get(number)
        if region is None:
            self.world.ledger.violated(f"{self.name} is given an answer in a region that is closed")
            return 0
        return value_of(region.view[offset : offset + size])

    # Memory.

    def read(self, request, wanted="IN"):
        """The value of a request's input."""
        data = self._input(request, wanted)
        return 0 if data is None else value_of(data)

    def _input(self, request, wanted):
        """The contents of an input, where they are; None if there is none."""
        for name, _, _, at, size, kind, device in request.tensors:
            if name == wanted:
                if isinstance(at, bytes):
                    return at
                if kind == MEMORY_GPU:
                    return self.gpu.contents(at, size, device)
                number, offset = split(at)
                region = self.requests if not number else self.world.memory.open.get(number)
                if region is None:
                    self.world.ledger.violated(f"{self.name} is given an input in a region that is closed")
                    return None
                return region.view[offset : offset + size]
        return None

    def response(self, request, value):
        """A response with this value, of the same shape as the request."""
        shape, size = next((ref[2], ref[4]) for ref in request.tensors if ref[0] == "IN")
        try:
            offset = self.arena.allocate(size)
        except OutOfMemoryError as exc:
            return encode_error(int(Code.UNAVAILABLE), str(exc))
        contents = pack(value, size // 8)
        self.responses.view[offset : offset + size] = contents
        self.slots[offset] = size
        output = "OUT", "INT64", shape, offset, size, MEMORY_CPU, 0
        there = None if self.gpu is None else self.gpu.place(request, offset, contents)
        if there is not None:
            self.responses.view[offset : offset + size] = POISON * size
            output = "OUT", "INT64", shape, there[0], size, MEMORY_GPU, there[1]
        response = OK, "", offset, [output], ""
        if self.model.states and request.correlation_id:
            return self._with_state(response, request, value - HOP)
        return response

    def _with_state(self, response, request, value):
        """The response with the next state of the request's sequence, unless the model changes it in place."""
        (state,) = self.model.states
        if state.is_shared:
            self._input(request, state.input_name)[:] = pack(value, 1)
        else:
            try:
                offset = self.arena.allocate(8)
            except OutOfMemoryError:
                self._free([response[SLOT]])
                return encode_error(int(Code.UNAVAILABLE), "no memory for a state")
            self.responses.view[offset : offset + 8] = pack(value, 1)
            self.slots[offset] = 8
            tensor = (state.output_name, "INT64", list(state.shape), offset, 8, MEMORY_CPU, 0)
            response = *response, (offset, [tensor])
        self.states[request.correlation_id] = value
        return response

    def _drop(self, sequence_id):
        """See messages.DropSequences."""
        if sequence_id not in self.held:
            self.world.ledger.violated(f"{self.name} is to drop sequence {sequence_id}, which it does not have")
        self.held.pop(sequence_id, None)
        self.sequences.pop(sequence_id, None)
        self.states.pop(sequence_id, None)

    def _free(self, released):
        for offset in released:
            size = self.slots.pop(offset, None)
            if size is None and self.is_faulty:
                continue
            if size is None:
                self.world.ledger.violated(f"{self.name} gets slot {offset} back twice, or one that it never gave")
                continue
            self.responses.view[offset : offset + size] = POISON * size
            if self.gpu is not None:
                self.gpu.free(offset)
            self.arena.free(offset)

    def executes(self, serial):
        """Whether it executes a request, or has its stream open."""
        return serial in self.streams or any(each.has(serial) for each in self.running)

    def is_cancelled(self, serial):
        """Whether the flag of a request is set."""
        return bool(self.responses.flag(serial))

    def check_sequence(self, request, value):
        """Check that a request of a sequence comes where its state is, and after the one before."""
        sequence_id = request.correlation_id
        if self.model.is_sequence and sequence_id:
            before = self.sequences.get(sequence_id)
            if request.flags & SEQUENCE_START:
                before = 0
            if before is None:
                self.world.ledger.violated(f"{self.name} gets sequence {sequence_id}, which it never began")
            elif value < before:
                self.world.ledger.violated(f"{self.name} gets requests of sequence {sequence_id} in another order")
            self.sequences[sequence_id] = value
            self.held[sequence_id] = None
            self.latest[sequence_id] = request
            self._check_state(request, sequence_id)

    def _check_state(self, request, sequence_id):
        """Check that the state is the one that the request before has left."""
        if request.flags & SEQUENCE_START:
            self.states[sequence_id] = 0
        for state in self.model.states:
            found = self.read(request, state.input_name)
            # A faulty stub may have sent the last state too late, or not at all.
            if found != self.states[sequence_id] and not self.is_faulty:
                self.world.ledger.violated(
                    f"{self.name} gets the state {found} of sequence {sequence_id}, and not {self.states[sequence_id]}"
                )

    def end_turn(self, request):
        """A request of a sequence is answered, perhaps after the START of the next sequence with the same id."""
        sequence_id = request.correlation_id
        if sequence_id not in self.held:
            return
        if not request.flags & SEQUENCE_END:
            self.held[sequence_id] = self.world.clock.now_ns
        elif self.latest[sequence_id] is request:
            del self.held[sequence_id]

    def check_warm_up(self, values):
        """Check that no request comes before those of the warm-up, which have the value 0."""
        wanted = self.model.warm_ups * self.concurrency
        if any(values) and self.warmed < wanted:
            self.world.ledger.violated(f"{self.name} gets a request after {self.warmed} of {wanted} to warm it up")
        self.warmed += values.count(0)


class Execution:
    """One batch while the stub executes it."""

    def __init__(self, stub, message):
        self.stub = stub
        self.number = message.batch
        self.requests = [WireRequest(*wire) for wire in message.requests]
        self.start_ns = stub.world.clock.monotonic_ns()
        self.values = [stub.read(request) for request in self.requests]
        self._streamed = set()
        # The thread that sends the responses of all requests, if one does.
        sending = stub.behaviour.sending(stub.model)
        self._sender = SendingThread(sending == "in turn") if sending else None

    def has(self, serial):
        """Whether a request is in the batch, and has no stream of its own."""
        index = serial - self.number
        return 0 <= index < len(self.requests) and index not in self._streamed

    def begin(self):
        """Do what the model does first."""
        stub, behaviour = self.stub, self.stub.behaviour
        stub.check_warm_up(self.values)
        for request, value in zip(self.requests, self.values, strict=True):
            stub.check_sequence(request, value)
        self.styles = [behaviour.style(stub.model) for _ in self.requests]
        for index, style in enumerate(self.styles):
            if style == "sender" and behaviour.is_early():
                self._stream(index)
        callee = behaviour.callee(stub.model, stub.world.models)
        if callee is not None:
            stub.call(callee, self.values[0], self.number, self._called)
        else:
            stub.loop.call_later(behaviour.execute_s(), self.finish)

    def _called(self, response):
        """Another model has answered."""
        self.stub.loop.call_later(self.stub.behaviour.execute_s(), self.finish)

    def finish(self):
        """Answer the batch."""
        stub, behaviour = self.stub, self.stub.behaviour
        if stub.has_ended or stub.is_deaf:
            return
        if [stub.read(request) for request in self.requests] != self.values:
            stub.world.ledger.violated(f"the inputs of a batch change while {stub.name} executes it")
        end_ns = stub.world.clock.monotonic_ns()
        retained = [index for index in range(len(self.requests)) if behaviour.retains()]
        if behaviour.fails():
            for index in self._streamed:
                stub.streams.pop(self.number + index, None)
            self._streamed.clear()
            stub.say(Failed(self.number, "this batch was made to fail", retained, self.start_ns, end_ns))
        else:
            outcomes = [self._outcome(index) for index in range(len(self.requests))]
            stub.say(Result(self.number, outcomes, retained, self.start_ns, end_ns))
        for index, request in enumerate(self.requests):
            if index not in self._streamed:
                stub.end_turn(request)
        for index in retained:
            stub.loop.call_later(behaviour.execute_s(), stub.say, Retired([self.number + index]))
        stub.ended(self)

    def _outcome(self, index):
        stub, request = self.stub, self.requests[index]
        style = self.styles[index]
        if style == "sender":
            if index not in self._streamed:
                self._stream(index)
            return None
        if style == "reschedule":
            return 0
        if style == "error":
            return encode_error(int(Code.INTERNAL), "this request was made to fail")
        if stub.is_cancelled(self.number + index) and stub.behaviour.heeds_flags():
            return encode_error(int(Code.CANCELLED), "")
        return stub.response(request, self.values[index] + HOP)

    def _stream(self, index):
        serial = self.number + index
        self._streamed.add(index)
        stream = Stream(self.stub, serial, self.requests[index], self.values[index] + HOP, self._sender)
        self.stub.streams[serial] = stream
        self.stub.loop.call_later(self.stub.behaviour.gap_s(), stream.go_on)


class SendingThread:
    """A thread of a model that sends to several requests, and waits in `send` for each of their windows.

    It sends to them `in_turn`, or all responses to the last one first.
    """

    def __init__(self, in_turn):
        self._in_turn = in_turn
        self._streams = []

    def add(self, stream):
        """It sends the responses of this stream, too."""
        self._streams.append(stream)

    def sends(self, stream):
        """Whether it sends the next response of a stream, and no other one before."""
        return stream is self._streams[0 if self._in_turn else -1]

    def sent(self, stream, is_over):
        """It goes on with the next stream, which is returned; None if there is none."""
        if is_over:
            self._streams.remove(stream)
        elif self._in_turn:
            self._streams.append(self._streams.pop(0))
        return self._streams[0 if self._in_turn else -1] if self._streams else None


class Stream:
    """The responses of a sender: as many as the behaviour draws, with gaps, and with the window of the real stub.

    `thread` sends them, and perhaps those of other streams; None for one that sends no others.
    """

    def __init__(self, stub, serial, request, value, thread=None):
        self.stub = stub
        self.serial = serial
        self.request = request
        self.value = value
        self.warms_up = value == HOP
        self.left = stub.behaviour.responses() if stub.model.is_decoupled else 1
        self._length = self.left
        self.ends_apart = stub.behaviour.ends_apart()
        self._is_waiting = False
        self._is_cut = False
        self._thread = thread
        if thread is not None:
            thread.add(self)
            self.left = self._length = self.left + stub.behaviour.more_responses()

    def go_on(self):
        """Send the next response, or the end, if the client is not too far behind."""
        stub, serial = self.stub, self.serial
        if stub.has_ended or stub.is_deaf or serial not in stub.streams or self._is_waiting:
            return
        if self._thread is not None and not self._thread.sends(self):
            return
        if self.left and stub.is_cancelled(serial) and stub.behaviour.heeds_flags():
            self.left = 0
            self._is_cut = True
        if self.left and not stub.flow.may_send(serial):
            return
        if not self.left:
            self._end(None)
            return
        self.left -= 1
        response = stub.response(self.request, self.value)
        if not self.left and not self.ends_apart:
            self._end(response)
            return
        if stub.model.is_decoupled:
            stub.flow.sent(serial, sum(tensor[4] for tensor in response[TENSORS]))
        stub.say(Respond(serial, response, False))
        self._is_waiting = True
        stub.loop.call_later(stub.behaviour.gap_s(), self._waited)

    def _waited(self):
        self._is_waiting = False
        self._sent(False)

    def _sent(self, is_over):
        following = self if not is_over else None
        if self._thread is not None:
            following = self._thread.sent(self, is_over)
        if following is not None:
            following.go_on()

    def _end(self, response):
        if not self._is_cut:
            self.stub.world.stream_lengths[self.stub.model.name, request_of(self.value)].add(self._length)
        self.stub.end_turn(self.request)
        del self.stub.streams[self.serial]
        self.stub.flow.end(self.serial)
        self.stub.say(Respond(self.serial, response, True))
        self._sent(True)
        self.stub._go_on()
