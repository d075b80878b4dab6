# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs and the brokers of them: processes without a process, which copy between main memory and a GPU.

The host's end is the real one, runtime/brokers/link.py, and so are the packets. A broker handles one packet after the
other, as broker.py does, and checks what a real one relies on: that it copies only to regions that it was granted, from
and to memory that it was told to open, and only what the host still waits for.
"""

import asyncio
import signal
import subprocess
from collections import deque
from functools import cached_property, partial
from itertools import count
from random import Random

from pyruntime.runtime.brokers.brokers import Brokers
from pyruntime.runtime.brokers.messages import Verb, decode_request, encode_answer
from pyruntime.runtime.brokers.pool import CHUNK_BYTES
from pyruntime.utils.gpu.driver import HANDLE_BYTES, GpuProperties, gpu_error

from .broker_faults import FAULTS, START_FAULTS

GPUS = 2
# The memory for chunks on each GPU, and of that what is kept, in bytes; and the bytes of a chunk that there are.
GPU_BYTES = 4 * CHUNK_BYTES
KEPT_BYTES = 2 * CHUNK_BYTES
CHUNK_SIMULATED_BYTES = 64 << 10
# A fault comes at one of this many first packets of a broker.
FAULT_WITHIN = 10
# So many brokers of a scenario may have a fault; those behind them have none.
FAULTY_LIVES = 4
# The packets that a socket has room for.
ROOM = 4
# How long brokers may copy for clients that have left, in seconds: hung ones are lost by then. So often is looked.
SETTLED_S = 300.0
SETTLED_LOOKS = 300
# How long after the end of a broker stubs know that its memory is lost, in seconds.
TOLD_S = 1.0
# How long packets are on their way, and how long a broker takes for one, in seconds.
LATENCY_S_MAX = 0.0002
WORK_S = (0.00001, 0.0001, 0.003, 0.2)


class Devices:
    """The GPUs of a scenario, with the memory of clients by its handle, and all brokers that were ever started."""

    def __init__(self, world):
        self.world = world
        self.memory = {}
        self.brokers = []
        # Copies of descriptors that the host has made, each with its region.
        self.descriptors = {}
        # The names of the regions that clients have registered, and not unregistered.
        self.registered = set()
        # The numbers of the regions in which a stub has written a tensor.
        self.written = set()
        # Who uses a chunk of a broker, by its handle.
        self.users = {}
        self.is_closing = False
        self._numbers = count(1)
        self._ends = {}

    @cached_property
    def gpus(self):
        return [GpuProperties(each, f"GPU-{each}", "", (8, 0), 1 << 30, 1 << 30, False) for each in range(GPUS)]

    def new_brokers(self):
        """See runtime/brokers/brokers.py."""
        return Brokers(lambda: self.gpus)

    def lease_bytes(self, draw):
        """How much memory a stub leases."""
        return draw.choice((1, CHUNK_BYTES, CHUNK_BYTES + 1))

    def begin_use(self, handle, user):
        """Somebody has leased a chunk. Returns its contents, None if its broker has ended."""
        before = self.users.setdefault(handle, user)
        if before is not user:
            self.world.ledger.violated(f"{user} leases memory that {before} has")
        return self.memory.get(handle)

    def end_use(self, handle, user):
        """Somebody no longer uses a chunk."""
        if self.users.get(handle) is user:
            del self.users[handle]

    def owner_of(self, handle):
        """The broker that allocated memory, None for a client's."""
        return next((broker for broker in self.brokers if handle in broker.handles.values()), None)

    def is_lost(self, handle):
        """Whether memory was a broker's that has ended."""
        owner = self.owner_of(handle)
        return owner is not None and owner.has_ended

    def allocate(self, size):
        """Memory of a client. Returns its handle."""
        handle = next(self._numbers).to_bytes(HANDLE_BYTES, "little")
        self.memory[handle] = bytearray(size)
        return handle

    def pair(self):
        """The two ends of a socket."""
        end = HostEnd(self.world.loop, next(self._numbers))
        self._ends[end.fileno()] = end
        return end, end.theirs

    def start(self, fd):
        """Start a broker at the other end. Raises OSError."""
        life = len(self.brokers)
        faults = self.world.plan.broker_faults if life < FAULTY_LIVES else 0.0
        draw = Random(f"{self.world.plan.seed} broker {life}")
        broker = SimulatedBroker(self, self._ends[fd], draw, faults)
        self.brokers.append(broker)
        if draw.random() < faults * 0.1:
            broker.end(1)
            raise OSError(11, "no more processes in this simulation")
        self.world.note("broker starts", life)
        return broker

    def duplicate(self, number):
        """Another descriptor of a region."""
        made = next(self._numbers)
        self.descriptors[made] = self.world.memory.open[number]
        return made

    async def settle(self):
        """Wait until no broker copies for a client that has left."""
        for _ in range(SETTLED_LOOKS):
            if not any(link._waiting and not link.is_lost for link in self.world.links):
                break
            await asyncio.sleep(SETTLED_S / SETTLED_LOOKS)
        await asyncio.sleep(1.0)  # what a lost one owes fails when it has ended

    def check_quiet(self, memory):
        """No client asks any more: brokers have open what is registered, and nothing else."""
        violated = self.world.ledger.violated
        rows = {row.number: row.name for row in memory.status_cuda()}
        if set(rows.values()) != self.registered:
            violated(f"regions {sorted(rows.values())} are registered, and not {sorted(self.registered)}")
        # The host keeps the last chunk of each GPU for copies from others.
        chunks = [chunk for some in self.world.peers._chunks.values() for chunk in some if not chunk.region.loss]
        copies = {chunk.region.gpu.uuid: chunk.size for chunk in chunks}
        kept_handles = {chunk.region.handle for chunk in chunks}
        if not all(chunk.is_empty for chunk in chunks):
            violated("copies between GPUs are kept that nobody reads")
        usage = self.world.gpus.usage().items()
        leased = {uuid: leased for uuid, (leased, _) in usage if leased != copies.get(uuid, 0)}
        if leased:
            violated(f"stubs that have ended lease {leased} bytes")
        for broker in self.brokers:
            copied = sum(chunk.size for chunk in chunks if chunk.region.handle in broker.handles.values())
            if broker.is_waiting and sum(broker.allocated.values()) > KEPT_BYTES + copied:
                violated(f"{broker} keeps {sum(broker.allocated.values())} bytes that nobody leases")
            # That chunk is open where the memory of a client was copied to it.
            kept = {number for number, handle in broker.borrowed.items() if handle in kept_handles}
            if broker.is_waiting and not broker.opened.keys() - broker.allocated.keys() - kept <= rows.keys():
                violated(f"{broker} has memory open that nobody has registered: {sorted(broker.opened)}")
            if broker.is_waiting and any(number not in self.world.memory.open for number in broker.granted):
                violated(f"{broker} has regions that are closed: {sorted(broker.granted)}")

    def end(self):
        """The scenario is over: nothing may be left."""
        for broker in self.brokers:
            if not broker.has_ended:
                self.world.ledger.violated(f"{broker} never ends")
        if self.descriptors:
            self.world.ledger.violated(f"descriptors of {list(self.descriptors.values())} are never closed")

    def kill(self):
        """End all brokers, because the run has ended."""
        for broker in self.brokers:
            broker.end(-signal.SIGKILL)


class HostEnd:
    """The host's end of a socket for packets. `broker` is at the other end as soon as it is started."""

    def __init__(self, loop, number):
        self._loop = loop
        self._number = number
        self.broker = None
        self.theirs = TheirEnd(number)
        # Packets to read; b"" for the end.
        self.arrived = deque()
        self.is_closed = False

    def setblocking(self, flag):
        """Nothing blocks."""

    def fileno(self):
        return self._number

    def recv(self, size):
        if not self.arrived:
            raise BlockingIOError
        return self.arrived.popleft()

    def send(self, packet, regions):
        self.broker.take(packet, regions)

    def close(self):
        if not self.is_closed:
            self.is_closed = True
            if self.broker is not None:
                self.broker.hung_up()

    def arrives(self, packets):
        """Something is to be read."""
        if not self.is_closed:
            self.arrived += packets
            self._loop.is_readable(self._number)

    def has_room(self):
        """Packets may be sent again."""
        if not self.is_closed:
            self._loop.is_writable(self._number)


class TheirEnd:
    """The other end, before a process has it."""

    def __init__(self, number):
        self._number = number

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        """The process has it."""

    def fileno(self):
        return self._number


class SimulatedBroker:
    """See the module, and subprocess.Popen."""

    def __init__(self, devices, end, draw, faults):
        self._devices = devices
        self._world = devices.world
        self._loop = devices.world.loop
        self._end = end
        end.broker = self
        self._draw = draw
        self.pid = len(devices.brokers) + 1
        self._is_faulty = draw.random() < faults
        self._fault = draw.choice(FAULTS) if self._is_faulty and draw.random() < 0.8 else None
        self._packets_left = draw.randrange(FAULT_WITHIN)
        self.refuses = draw.random() < faults * 0.5
        self.has_ended = False
        # It handles no packet any more, and does not even notice that the host has hung up.
        self.hangs = False
        self._is_ready = False
        self._code = None
        self._inbox = deque()
        # Packets on their way to the host.
        self._coming = deque()
        # The request that it handles, with the regions that came with it; and the same until it has done that.
        self._at = self._due = None
        # Memory of clients and of its own, by the numbers; the sizes of the latter.
        self.opened = {}
        self.allocated = {}
        self.granted = {}
        self._failed = set()
        self.handles = {}
        # The handles of other brokers' memory that it has open, by the numbers.
        self.borrowed = {}
        self._waiting = []
        self._loop.call_later(draw.random() * 0.05, self._started)

    def __repr__(self):
        return f"<SimulatedBroker {self.pid}>"

    @property
    def is_waiting(self):
        """Whether it serves, and has handled all packets."""
        return not (self.has_ended or self.hangs or self._end.is_closed or self._inbox or self._at)

    # The process: see subprocess.Popen.

    def poll(self):
        return self._code

    def kill(self):
        """The driver takes the context down, which takes a while: a copy that has begun may end meanwhile."""
        self._loop.call_later(self._draw.random() * 0.02, self._killed)

    def _killed(self):
        if self._due is not None and not self.has_ended and self._draw.random() < 0.5:
            self.perform(*self._due)
        self.end(-signal.SIGKILL)

    def wait_for(self, seconds):
        """A future for the end of the process, or of this time."""
        future = self._loop.create_future()
        if self.has_ended:
            future.set_result(None)
        else:
            self._waiting.append(future)
            self._loop.call_later(seconds, self._resolve, future)
        return future

    def _resolve(self, future):
        if not future.done():
            future.set_result(None)

    def end(self, code):
        """The process ends."""
        if self.has_ended:
            return
        self.has_ended = True
        self._code = code
        self._at = self._due = None
        self._inbox.clear()
        self.opened.clear()
        self.allocated.clear()
        self.granted.clear()
        self.borrowed.clear()
        self._world.note("broker ends", self.pid, code)
        self._loop.call_later(TOLD_S, self._check_told)
        for future in self._waiting:
            self._resolve(future)
        self.answer(b"")

    def _check_told(self):
        """Who had memory of this process was told that it is lost."""
        users = [self._devices.users.get(handle) for handle in self.handles.values()]
        for user in users:
            if user is not None and user.listens and not self._world.is_closing:
                self._world.ledger.violated(f"{user} is never told that memory of {self} is lost")

    # The socket.

    def take(self, packet, regions):
        """A packet of the host. Raises OSError."""
        if self.has_ended:
            raise BrokenPipeError
        if len(self._inbox) >= ROOM:  # there is room again when a packet was read
            raise BlockingIOError
        if self._draw.random() < 0.05:
            self._later(self._end.has_room)
            raise BlockingIOError
        self._inbox.append((packet, regions))
        self._later(self._go_on)

    def hung_up(self):
        """The host has closed its end."""
        self._later(self._go_on)

    def answer(self, packet):
        """Send a packet to the host, b"" for the end of all packets."""
        self._coming.append(packet)
        self._later(self._arrive)

    def _arrive(self):
        """The next packet arrives, or all that are on their way."""
        count = len(self._coming) if self._draw.random() < 0.5 else min(1, len(self._coming))
        if count:
            self._end.arrives([self._coming.popleft() for _ in range(count)])

    def _later(self, call_back, *arguments):
        self._loop.call_later(self._draw.random() * LATENCY_S_MAX, call_back, *arguments)

    # Its work.

    def _started(self):
        if self.has_ended:
            return
        if self._is_faulty and self._fault is None:
            fault = self._draw.choice(START_FAULTS)
            self._world.note("broker fault", self.pid, fault.__name__)
            fault(self)
        else:
            self.ready()

    def ready(self):
        """It has its context."""
        self.answer(encode_answer(0))
        self._is_faulty = True
        self._is_ready = True
        self._go_on()

    def _go_on(self):
        if self.has_ended or self.hangs or self._at is not None or not self._is_ready:
            return
        if self._inbox:
            packet, regions = self._inbox.popleft()
            self._later(self._end.has_room)
            self._at = self._due = decode_request(packet), regions
            self._loop.call_later(self._draw.choice(WORK_S), self._worked)
        elif self._end.is_closed:
            self.end(0)

    def _worked(self):
        if self.has_ended or self.hangs:
            return
        request, regions = self._at
        fault = self._fault_now()
        if fault is not None:
            self._world.note("broker fault", self.pid, fault.__name__, request.verb.name)
            fault(self, request, partial(self.perform, request, regions), self.done)
        else:
            self.done(request, self.perform(request, regions))

    def _fault_now(self):
        self._packets_left -= 1
        if self._fault is None or self._packets_left >= 0:
            return None
        fault, self._fault = self._fault, None
        return fault

    def later(self, seconds, call_back, *arguments):
        """Call back, unless the process ends first."""
        self._loop.call_later(seconds, self._unless_ended, call_back, arguments)

    def _unless_ended(self, call_back, arguments):
        if not self.has_ended:
            call_back(*arguments)

    def done(self, request, packet):
        """Answer a request, and go on with the next one."""
        self._at = None
        if request.serial:
            self.answer(packet)
        self._go_on()

    def perform(self, request, regions):
        """Do what a request asks for. Returns the packet of the answer."""
        self._due = None
        serial, verb, arguments = request
        violated = self._world.ledger.violated
        number = arguments[0]
        match verb:
            case Verb.GRANT:
                if number in self.granted:
                    violated(f"{self} is granted region {number} twice")
                (self.granted[number],) = regions
            case Verb.REVOKE:
                if self.granted.pop(number, None) is None:
                    violated(f"{self} is to forget region {number}, which it does not have")
            case Verb.OPEN:
                handle = arguments[1]
                contents = None if self._devices.is_lost(handle) else self._devices.memory.get(handle)
                if contents is None or (self.refuses and self._draw.random() < 0.5):
                    self._failed.add(number)
                    return encode_answer(serial, gpu_error("CUDA_ERROR_INVALID_HANDLE", "open"))
                self.opened[number] = contents
                if self._devices.owner_of(handle) is not None:
                    self.borrowed[number] = handle
                return encode_answer(serial, None, len(contents))
            case Verb.CLOSE:
                self.borrowed.pop(number, None)
                if self.opened.pop(number, None) is None and number not in self._failed:
                    violated(f"{self} is to close memory {number}, which it was never told to open")
            case Verb.ALLOCATE:
                return self._allocate(serial, *arguments)
            case Verb.FREE:
                self._free(number)
            case Verb.EVENT:
                if number not in self.allocated:
                    violated(f"{self} gets an event for memory {number}, which it has not allocated")
            case Verb.COMPLETE:
                if number not in self.allocated:
                    violated(f"{self} is to wait for memory {number}, which it has not allocated")
            case Verb.COPY:
                return self._copy_on_gpu(serial, *arguments)
            case _:
                return self._copy(serial, verb, *arguments)
        return encode_answer(serial)

    def _allocate(self, serial, number, size):
        if sum(self.allocated.values()) + size > GPU_BYTES:
            return encode_answer(serial, gpu_error("CUDA_ERROR_OUT_OF_MEMORY", "allocate"))
        handle = self._devices.allocate(CHUNK_SIMULATED_BYTES)
        self.opened[number] = self._devices.memory[handle]
        self.allocated[number] = size
        self.handles[number] = handle
        return encode_answer(serial, None, handle)

    def _free(self, number):
        if self.allocated.pop(number, None) is None:
            self._world.ledger.violated(f"{self} is to free memory {number}, which it has not allocated")
            return
        del self.opened[number]
        user = self._devices.users.get(self.handles[number])
        if user is not None:
            self._world.ledger.violated(f"{self} is to free memory that {user} has open")
        for broker in self._devices.brokers:
            if self.handles[number] in broker.borrowed.values():
                self._world.ledger.violated(f"{self} is to free memory that {broker} has open")

    def _copy(self, serial, verb, memory, at, size, number, offset):
        violated = self._world.ledger.violated
        region = self.granted.get(number)
        if region is None:
            violated(f"{self} is to copy to region {number}, which it was not granted")
            return b""
        if memory not in self.opened:
            if memory not in self._failed:
                violated(f"{self} is to copy memory {memory}, which it was never told to open")
            return encode_answer(serial, gpu_error("CUDA_ERROR_INVALID_HANDLE", "copy"))
        if self.refuses and self._draw.random() < 0.3:
            return encode_answer(serial, gpu_error("CUDA_ERROR_OUT_OF_MEMORY", "copy"))
        if not self._devices.is_closing and not self._is_wanted(serial):
            violated(f"{self} copies for request {serial}, which has failed")
        # The memory of a model may be closed while a broker copies there: the time for its last requests is over.
        if verb is Verb.WRITE and number not in self._world.memory.open:
            violated(f"{self} copies from region {number}, which is closed")
        contents = self.opened[memory]
        if verb is Verb.READ:
            region.view[offset : offset + size] = contents[at : at + size]
        else:
            contents[at : at + size] = region.view[offset : offset + size]
        return encode_answer(serial)

    def _copy_on_gpu(self, serial, memory, at, size, target, offset):
        for number in (memory, target):
            if number not in self.opened:
                if number not in self._failed:
                    self._world.ledger.violated(f"{self} is to copy memory {number}, which it was never told to open")
                return encode_answer(serial, gpu_error("CUDA_ERROR_INVALID_HANDLE", "copy"))
        self.opened[target][offset : offset + size] = self.opened[memory][at : at + size]
        return encode_answer(serial)

    def _is_wanted(self, serial):
        """Whether the host still waits for an answer: what it has given up may lie in other hands."""
        return any(serial in link._waiting for link in self._world.links if link._process is self)


class BrokerSockets:
    """In place of the module `socket`."""

    AF_UNIX = SOCK_SEQPACKET = 0

    def __init__(self, stage):
        self._stage = stage

    def socketpair(self, family, kind):
        return self._stage.world.devices.pair()

    def send_fds(self, sock, buffers, fds):
        sock.send(b"".join(buffers), [self._stage.world.devices.descriptors[fd] for fd in fds])


class BrokerDescriptors:
    """In place of the module `os`."""

    environ = {}

    def __init__(self, stage):
        self._stage = stage

    def dup(self, fd):
        return self._stage.world.devices.duplicate(fd)

    def close(self, fd):
        del self._stage.world.devices.descriptors[fd]


class BrokerProcesses:
    """In place of the module `subprocess`."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, stage):
        self._stage = stage

    def _args_from_interpreter_flags(self):
        return []

    def Popen(self, command, *, pass_fds, **options):
        return self._stage.world.devices.start(*pass_fds)
