# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model that attacks its server by system calls on the descriptors that it finds.

The parameter `seed` of a request seeds a random sequence of calls; `call` is the name of one call instead, which it
makes on each descriptor with every choice of its arguments. The model then answers with what it got, if it still can. A
timer kills its process if it hangs.
"""

import array
import contextlib
import ctypes
import fcntl
import itertools
import json
import mmap
import os
import random
import re
import signal
import socket
import struct
import traceback

import triton_python_backend_utils as pb_utils

STEPS = 25
ALIVE_S = 1.0
KIB = 1 << 10
REGION = 64 << 30
FLAGS = REGION - 4096
# Allocating calls get no more than this, so that an attack does not need much memory.
ALLOCATED = 256 * KIB

libc = ctypes.CDLL(None, use_errno=True)


def call(name, *arguments):
    """A function of libc, which gets integers as they are; its result, whatever it is."""
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return getattr(libc, name)(*wide)


def descriptors():
    """Every descriptor of this process with what it is, but files with a name: those are not the server's alone."""
    found = []
    for entry in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            if not target.startswith("/") or target.startswith("/memfd:"):
                found.append((entry, target))
    return found


def mappings():
    """The addresses and sizes of the regions that this process maps."""
    with open("/proc/self/maps") as maps:
        found = re.findall(r"^(\w+)-(\w+) .*/memfd:pyruntime ", maps.read(), re.MULTILINE)
    return [(int(start, 16), int(end, 16) - int(start, 16)) for start, end in found]


def reopen(fd, flags):
    with contextlib.suppress(OSError):
        os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK)


def remap(fd, offset, size, protection, advice):
    """Map a part anew, treat it badly, and leave it mapped or not."""
    libc.mmap.restype = ctypes.c_void_p
    address = libc.mmap(None, ctypes.c_long(size), protection, mmap.MAP_SHARED, fd, ctypes.c_long(offset))
    if address == ctypes.c_void_p(-1).value:
        return
    at = ctypes.c_void_p(address)
    libc.madvise(at, ctypes.c_long(size), advice)
    libc.mprotect(at, ctypes.c_long(size), mmap.PROT_READ)
    libc.munmap(at, ctypes.c_long(size))


def hurt_mappings(what, offset):
    """Take a page of the regions that the stub itself has mapped."""
    for start, size in mappings():
        at = ctypes.c_void_p(start + min(offset, size - 4096))
        if what == "munmap":
            libc.munmap(at, ctypes.c_long(4096))
        elif what == "mprotect":
            libc.mprotect(at, ctypes.c_long(4096), 0)
        elif what == "mremap":
            libc.mremap(at, ctypes.c_long(4096), ctypes.c_long(8192), 1)
        elif what == "remove":
            libc.madvise(at, ctypes.c_long(4096), 9)
        elif what == "scribble":
            libc.memset(at, 0xFF, ctypes.c_long(4096))


def send_descriptors(fd, other):
    with contextlib.suppress(OSError, ValueError), socket.socket(fileno=os.dup(fd)) as sock:
        payload = array.array("i", [other] * 8)
        sock.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, payload)], socket.MSG_DONTWAIT)


def set_option(fd, option, value):
    libc.setsockopt(fd, socket.SOL_SOCKET, option, struct.pack("i", value), 4)


def control(fd, command, argument):
    with contextlib.suppress(OSError, OverflowError):
        fcntl.fcntl(fd, command, argument)


def set_attributes(fd, attributes):
    with contextlib.suppress(OSError):
        fcntl.ioctl(fd, 0x40086602, struct.pack("l", attributes))  # FS_IOC_SETFLAGS


def write_at(fd, offset, size):
    with contextlib.suppress(OSError):
        os.pwrite(fd, b"\xff" * size, offset)


def write(fd, size):
    with contextlib.suppress(OSError):
        os.set_blocking(fd, False)
        os.write(fd, b"\xff" * size)


def read(fd, size):
    with contextlib.suppress(OSError):
        os.set_blocking(fd, False)
        os.read(fd, size)


def move(name, fd, other, size):
    """Move bytes between two descriptors, neither of which may block."""
    for each in (fd, other):
        with contextlib.suppress(OSError):
            os.set_blocking(each, False)
    if name == "sendfile":
        call("sendfile", fd, other, None, size)
    elif name == "copy_file_range":
        call("copy_file_range", fd, None, other, None, size, 0)
    elif name == "tee":
        call("tee", fd, other, size, 2)
    else:
        call("splice", fd, None, other, None, size, 2)


OFFSETS = [0, 1, 4096, 64 * KIB, 1 << 20, 1 << 33, FLAGS, FLAGS + 7, REGION, -1, 1 << 62]
SIZES = [0, 1, 4096, ALLOCATED, -1]
# KEEP_SIZE, PUNCH_HOLE, NO_HIDE_STALE, COLLAPSE_RANGE, ZERO_RANGE, INSERT_RANGE, UNSHARE_RANGE, and what is none.
MODES = [0, 1, 3, 7, 8, 0x10, 0x11, 0x20, 0x40, 0x80, -1]
ADVICE = [4, 8, 9, 10, 14, 15, 16, 18, 20, 21, 22, 23, 25]
SEALS = [1, 2, 4, 8, 0x10, 0x20, 0x1F, -1]
LENGTHS = [1, 4095, 4096, 1 << 20, FLAGS, REGION - 1, REGION, REGION + 1, 1 << 62, -1, 0]
FD = object()  # stands for another descriptor of the process

# Each call, and the choices of each of its arguments behind the descriptor.
CALLS = {
    "ftruncate": (lambda fd, size: call("ftruncate", fd, size), LENGTHS),
    "fallocate": (lambda fd, *how: call("fallocate", fd, *how), MODES, OFFSETS, SIZES),
    "punch": (lambda fd, mode, offset, size: call("fallocate", fd, mode, offset, size), [3], OFFSETS, [4096, REGION]),
    "mmap": (remap, [0, 4096, 1 << 33, FLAGS, REGION], [4096, ALLOCATED, REGION], [1, 3, 7], ADVICE),
    "own mappings": (
        lambda fd, what, offset: hurt_mappings(what, offset),
        ["munmap", "mprotect", "mremap", "remove", "scribble"],
        [0, 4096, FLAGS],
    ),
    "sendfile": (lambda fd, other, size: move("sendfile", fd, other, size), [FD], [1, 64 * KIB]),
    "splice": (lambda fd, other, size: move("splice", fd, other, size), [FD], [1, 64 * KIB]),
    "tee": (lambda fd, other, size: move("tee", fd, other, size), [FD], [1, 64 * KIB]),
    "copy_file_range": (lambda fd, other, size: move("copy_file_range", fd, other, size), [FD], [1, 64 * KIB]),
    "write": (write, [1, 64 * KIB]),
    "pwrite": (write_at, OFFSETS, [1, 64 * KIB]),
    "read": (read, [1, 64 * KIB]),
    "seals": (lambda fd, seals: control(fd, fcntl.F_ADD_SEALS, seals), SEALS),
    "flags": (lambda fd, flags: control(fd, fcntl.F_SETFL, flags), [0, os.O_APPEND, os.O_NONBLOCK, os.O_DIRECT, -1]),
    "async": (lambda fd, flags: control(fd, fcntl.F_SETFL, flags), [os.O_ASYNC | os.O_NONBLOCK]),
    "owner": (lambda fd, owner: control(fd, fcntl.F_SETOWN, owner), [0, os.getpid()]),
    "lease": (lambda fd, kind: control(fd, fcntl.F_SETLEASE, kind), [fcntl.F_RDLCK, fcntl.F_WRLCK]),
    "pipe size": (lambda fd, size: control(fd, 1031, size), [0, 4096, 1 << 20]),
    "lock": (lambda fd, kind: call("flock", fd, kind), [5, 6]),
    "attributes": (set_attributes, [0x10, 0x20, 0x30, 0]),
    "mode": (lambda fd, mode: call("fchmod", fd, mode), [0, 0o777]),
    "seek": (lambda fd, offset: call("lseek", fd, offset, 0), OFFSETS),
    "sync": (lambda fd: call("fsync", fd),),
    "reopen": (reopen, [os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_TRUNC, os.O_WRONLY | os.O_APPEND]),
    "shutdown": (lambda fd, how: call("shutdown", fd, how), [0, 1, 2]),
    "socket option": (
        set_option,
        [socket.SO_SNDBUF, socket.SO_RCVBUF, socket.SO_PASSCRED, socket.SO_LINGER, socket.SO_KEEPALIVE],
        [0, 1, 1 << 30],
    ),
    "send descriptors": (send_descriptors, [FD]),
    "dup2": (lambda fd, other: call("dup2", fd, other), [FD]),
    "close": (lambda fd: call("close", fd),),
}


def random_sequence(seed):
    """STEPS random calls. Most are on regions, of which the others are made of."""
    choice = random.Random(seed)
    for _ in range(STEPS):
        found = descriptors()
        if not found:
            return
        regions = [fd for fd, target in found if target.startswith("/memfd:")]
        every = [fd for fd, _ in found]
        fd = choice.choice(regions if regions and choice.random() < 0.6 else every)
        function, *choices = CALLS[choice.choice(list(CALLS))]
        function(fd, *[choice.choice(every) if each is FD else each for each in map(choice.choice, choices)])


def every_choice(name):
    """One call on each descriptor, with all choices of its arguments; regions first, whose calls may end the stub."""
    function, *choices = CALLS[name]
    found = sorted(descriptors(), key=lambda each: not each[1].startswith("/memfd:"))
    for fd, _ in found:
        for arguments in itertools.product(*choices):
            for other, _ in found if FD in arguments else [(0, "")]:
                function(fd, *[other if each is FD else each for each in arguments])


class TritonPythonModel:
    def initialize(self, args):
        self.broken = args["model_repository"] + "/broken"

    def execute(self, requests):
        (request,) = requests
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, ALIVE_S)
        contents = request.inputs()[0].as_numpy().copy()
        asked = json.loads(request.parameters())
        try:
            if "call" in asked:
                every_choice(asked["call"])
            elif "seed" in asked:
                random_sequence(asked["seed"])
            else:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except OSError:
            pass  # this process is no longer good for anything
        except Exception:  # a mistake in this file
            with open(self.broken, "w") as file:
                traceback.print_exc(file=file)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", contents)])]
