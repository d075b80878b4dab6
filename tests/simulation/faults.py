# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong with a stub, at any of its messages.

A fault is a function of the stub, of the message that it is about to send, and of the bytes of that message; it stands
in place of the sending. To add one, write the function and list it in FAULTS.
"""

import signal

import msgpack

from pyruntime.utils.messages import TAGS, Respond, Result

# How late a late stub answers, in seconds.
LATE_S = 40.0
# After this long somebody kills a stub that does not read, in seconds: the server lets a model take any time.
DEAF_S = 90.0


def _encoded(message):
    """The bytes of a message that is not legal now."""
    return msgpack.packb((TAGS[type(message)], message))


def dies_before(stub, message, data):
    """The process is killed, and the message never sent."""
    stub.die(-signal.SIGSEGV)


def dies_after(stub, message, data):
    """The process is killed just after it has sent the message."""
    stub.transport.say(data)
    stub.die(-signal.SIGKILL)


def dies_within(stub, message, data):
    """The process is killed in the middle of a frame."""
    stub.transport.say(data[: len(data) // 2])
    stub.die(3)


def hangs_up(stub, message, data):
    """The socket is closed, and the process goes on for a while."""
    stub.linger()


def stops_reading(stub, message, data):
    """A process that serves neither reads nor writes any more, and does not end."""
    if stub.is_serving:
        stub.is_deaf = True
        stub.loop.call_later(DEAF_S, stub.die, -signal.SIGKILL)
    else:
        stub.transport.say(data)


def is_late(stub, message, data):
    """The message comes, a long time later."""

    def arrives():
        stub.is_late = False
        stub.transport.say(data)

    stub.is_late = True
    stub.loop.call_later(LATE_S, arrives)


def says_it_twice(stub, message, data):
    """The same message again."""
    stub.transport.say(data + data)


def talks_nonsense(stub, message, data):
    """Bytes that are no message."""
    stub.transport.say(b"\xc1\xff" + data)


def names_another(stub, message, data):
    """An answer to a batch, or a request, that there is not."""
    if isinstance(message, Result):
        message = message._replace(batch=message.batch + 1000)
    elif isinstance(message, Respond):
        message = message._replace(serial=message.serial + 1000)
    stub.transport.say(_encoded(message))


def answers_too_much(stub, message, data):
    """One more answer than the batch has requests."""
    if isinstance(message, Result):
        message = message._replace(responses=[*message.responses, None])
    stub.transport.say(_encoded(message))


def points_outside(stub, message, data):
    """Outputs that do not lie in the stub's memory."""
    if isinstance(message, Result):
        tensor = ("OUT", "INT64", [1], stub.responses.limit, 8, 0, 0)
        message = message._replace(responses=[(-1, "", 0, [tensor], "")] * len(message.responses))
    stub.transport.say(_encoded(message))


FAULTS = (
    dies_before,
    dies_after,
    dies_within,
    hangs_up,
    stops_reading,
    is_late,
    says_it_twice,
    talks_nonsense,
    names_another,
    answers_too_much,
    points_outside,
)
