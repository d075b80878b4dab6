# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with the broker of a GPU, at its start and at any packet.

A fault at a packet is a function of the broker, of the request, of a function that does what the request asks for and
returns the answer, and of one that sends it and goes on. To add one, write the function and list it in FAULTS.
"""

import signal

from pyruntime.runtime.brokers.messages import encode_answer
from pyruntime.utils.gpu.driver import gpu_error

# How late a late broker answers, in seconds: sooner and later than the host has patience.
LATE_S = 30.0
TOO_LATE_S = 80.0


def dies_before(broker, request, perform, done):
    """The process is killed before it does anything."""
    broker.end(-signal.SIGSEGV)


def dies_within(broker, request, perform, done):
    """The process is killed behind the copy, before its answer."""
    perform()
    broker.end(-signal.SIGKILL)


def dies_after(broker, request, perform, done):
    """The process is killed just after its answer."""
    done(request, perform())
    broker.end(-signal.SIGKILL)


def is_late(broker, request, perform, done):
    """The copy takes long."""
    broker.later(LATE_S, lambda: done(request, perform()))


def is_too_late(broker, request, perform, done):
    """The copy takes longer than the host waits."""
    broker.later(TOO_LATE_S, lambda: done(request, perform()))


def hangs(broker, request, perform, done):
    """It waits for the driver for ever."""
    broker.hangs = True


def answers_twice(broker, request, perform, done):
    """The same answer again."""
    packet = perform()
    if request.serial:
        broker.answer(packet)
    done(request, packet)


def talks_nonsense(broker, request, perform, done):
    """A packet that is no answer."""
    broker.answer(b"\xc1\xff")
    done(request, perform())


def names_another(broker, request, perform, done):
    """The answer to a request that nobody has made."""
    perform()
    broker.answer(encode_answer(request.serial + 1000))


def loses_the_gpu(broker, request, perform, done):
    """The GPU fails in this process, which ends."""
    if request.serial:
        broker.answer(encode_answer(request.serial, gpu_error("CUDA_ERROR_ECC_UNCORRECTABLE", "copy")))
    broker.end(0)


FAULTS = (
    dies_before,
    dies_within,
    dies_after,
    is_late,
    is_too_late,
    hangs,
    answers_twice,
    talks_nonsense,
    names_another,
    loses_the_gpu,
)


def has_no_gpu(broker):
    """The driver refuses a context."""
    broker.answer(encode_answer(0, gpu_error("CUDA_ERROR_NO_DEVICE", "open")))
    broker.end(0)


def dies_at_its_start(broker):
    """It ends without a word."""
    broker.end(1)


def is_never_ready(broker):
    """It waits for the driver for ever."""
    broker.hangs = True


def ends_when_it_is_ready(broker):
    """It ends as soon as it is ready."""
    broker.ready()
    broker.end(1)


START_FAULTS = (has_no_gpu, dies_at_its_start, is_never_ready, ends_when_it_is_ready)
