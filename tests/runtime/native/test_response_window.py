# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""How far a backend may be ahead of its clients: see tests/native/flow.cc."""

import struct

import pytest

from pyruntime.utils.flow_control import BYTES_AHEAD_MAX as BYTES_MAX
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX as RESPONSES_MAX

# As in callbacks.h: so many callbacks may wait for clients.
CALLBACKS_MAX = 128


@pytest.fixture
def backend(native):
    """Floods its clients."""
    return native("flow.cc", outputs=("OUT", "PAD"))


@pytest.fixture
def flood(backend, request_of):
    """`flood(count, size=0, fails=False)`: a request that is to be answered so often, and its serial."""

    def flood(count, size=0, fails=False):
        serial = backend._serial
        request = request_of("", ("IN", "INT64", [3], struct.pack("<qqq", count, size, fails)))
        (job,) = backend.execute(request)
        return job, serial

    return flood


@pytest.fixture
def report(backend, request_of):
    """`report(id="report")`: the numbers of sent responses and of ended threads, the last error of the server, the
    number of responses that threads have begun to send, and that of the latest thread.
    """

    def report(id="report"):
        (job,) = backend.run(request_of(id))
        ((_, failure, outputs, parameters),) = job.responses
        assert failure is None
        sent, ended, begun, thread = struct.unpack("<qqqq", bytes(outputs[0][3]))
        return sent, ended, parameters["told"], begun, thread

    return report


@pytest.fixture
def wait_sent(report):
    """Wait until so many responses were sent and the one thread that sends waits, or has ended, with the next one.

    `sent` is counted after Python may have seen the response. A thread that does not wait yet would still go on when
    the client takes one.
    """

    def is_asleep(thread):
        with open(f"/proc/self/task/{thread}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] == "S"

    def wait_sent(count):
        while True:
            sent, ended, _, begun, thread = report()
            assert sent <= count
            if sent == count and (ended or (begun > count and is_asleep(thread))):
                return

    return wait_sent


def numbers_of(job):
    """The numbers in the responses but the last one, which is only the end."""
    return [struct.unpack("<q", bytes(outputs[0][3]))[0] for _, _, outputs, _ in job.responses if outputs]


def take_all(backend, job, serial, taken):
    """Take all responses until the request has ended."""
    while not job.over:
        responses = len(job.responses)
        for _ in range(taken, responses):
            backend.instance.take(serial)
        taken = responses
        backend.wait(lambda responses=responses: len(job.responses) > responses or job.over)
        assert len(job.responses) - taken <= RESPONSES_MAX + 1


def test_so_many_responses(backend, flood, wait_sent):
    """A backend waits there, until half of them is taken; nothing is lost, and order is kept."""
    job, serial = flood(3 * RESPONSES_MAX)
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX)
    wait_sent(RESPONSES_MAX)
    for _ in range(RESPONSES_MAX // 2):
        backend.instance.take(serial)
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX * 3 // 2)
    wait_sent(RESPONSES_MAX * 3 // 2)
    take_all(backend, job, serial, RESPONSES_MAX // 2)
    assert numbers_of(job) == list(range(3 * RESPONSES_MAX))


def test_so_many_bytes(backend, flood, wait_sent):
    """One more than that at most, however few responses they are."""
    job, serial = flood(6, BYTES_MAX * 5 // 8)
    backend.wait(lambda: len(job.responses) == 2)
    wait_sent(2)
    backend.instance.take(serial)
    wait_sent(2)
    backend.instance.take(serial)
    backend.wait(lambda: len(job.responses) == 4)
    wait_sent(4)
    take_all(backend, job, serial, 2)
    assert numbers_of(job) == list(range(6))


def test_one_response_of_any_size(backend, flood):
    """It is sent where nothing is ahead."""
    job, serial = flood(2, 2 * BYTES_MAX)
    backend.wait(lambda: len(job.responses) == 1)
    backend.instance.take(serial)
    backend.wait(lambda: job.over)
    assert numbers_of(job) == [0, 1]


def test_errors(backend, flood, wait_sent):
    """They count as other responses do."""
    job, serial = flood(2 * RESPONSES_MAX, fails=True)
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX)
    wait_sent(RESPONSES_MAX)
    take_all(backend, job, serial, 0)
    assert [failure[1] for _, failure, *_ in job.responses[:-1]] == [
        f"no. {index}" for index in range(2 * RESPONSES_MAX)
    ]


def test_each_request_has_its_own(backend, flood):
    """One client that takes nothing holds up no other."""
    slow, slow_serial = flood(2 * RESPONSES_MAX)
    backend.wait(lambda: len(slow.responses) == RESPONSES_MAX)
    fast, serial = flood(2 * RESPONSES_MAX)
    take_all(backend, fast, serial, 0)
    assert numbers_of(fast) == list(range(2 * RESPONSES_MAX))
    assert len(slow.responses) == RESPONSES_MAX
    take_all(backend, slow, slow_serial, 0)


def test_cancelled(backend, flood):
    """A sender does not wait for a client that has gone; the responses that Python has not taken are still limited."""
    job, serial = flood(10 * RESPONSES_MAX)
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX)
    backend.instance.cancel(serial)
    while not job.over:
        before = len(job.responses)
        backend.wait(lambda before=before: len(job.responses) > before)
        assert len(job.responses) - before <= RESPONSES_MAX + 1
    assert numbers_of(job) == list(range(10 * RESPONSES_MAX))


def test_another_window(backend, flood, wait_sent):
    """It is as large as Python has said when the request begins."""
    backend.triton.set_response_window(10, 1 << 10)
    job, serial = flood(20)
    backend.triton.set_response_window(RESPONSES_MAX, BYTES_MAX)
    backend.wait(lambda: len(job.responses) == 10)
    wait_sent(10)
    take_all(backend, job, serial, 0)
    for arguments in ((1,), (1, "2"), (1, 1 << 100)):
        with pytest.raises((TypeError, OverflowError)):
            backend.triton.set_response_window(*arguments)


def test_finished(backend, flood, report):
    """A sender that waits gets an error if another thread has sent the final response."""
    job, _ = flood(2 * RESPONSES_MAX)
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX)
    report("end")
    told = report()
    while not told[1]:
        told = report()
    assert told[0] == RESPONSES_MAX
    assert "has sent the final response to request '' before" in told[2]
    assert job.over
    assert len(job.responses) == RESPONSES_MAX + 1


def test_finalized(native, request_of):
    """A backend that waits for its threads when it is finalised does not wait for clients."""
    backend = native("flow.cc", outputs=("OUT", "PAD"))
    (job,) = backend.execute(request_of("", ("IN", "INT64", [3], struct.pack("<qqq", 2 * RESPONSES_MAX, 0, 0))))
    backend.wait(lambda: len(job.responses) == RESPONSES_MAX)
    backend.instance.finalize()
    backend.wait(lambda: job.over)
    assert numbers_of(job) == list(range(2 * RESPONSES_MAX))


def test_none_where_there_is_one_response(native, request_of):
    """A model that is not decoupled has no limit: of its responses before the end, one at most counts."""
    backend = native("flow.cc", outputs=("OUT", "PAD"), decoupled=False)
    (job,) = backend.run(request_of("", ("IN", "INT64", [3], struct.pack("<qqq", 2 * RESPONSES_MAX, 0, 0))))
    assert len(job.responses) == 2 * RESPONSES_MAX + 1


def test_what_is_over(backend, flood):
    """Taking responses of a request that has ended has no effect."""
    job, serial = flood(1)
    backend.wait(lambda: job.over)
    for each in (serial, serial, serial + 1000):
        backend.instance.take(each)
    with pytest.raises(TypeError):
        backend.instance.take("1")
    with pytest.raises(OverflowError):
        backend.instance.take(-1)


def test_callbacks_do_not_all_wait(native, request_of):
    """A client may be native code, which takes responses in a callback: there are always threads left for that."""
    backend = native("forward.cc")
    triton = backend.triton

    class Server:
        """The extension, whose calls are answered at once: by one response, that has no outputs."""

        descriptor = staticmethod(triton.descriptor)

        def __getattr__(self, name):
            return getattr(triton, name)

        def drain(self):
            events = triton.drain()
            for call in [fields[0] for kind, *fields in events if kind == triton.CALL]:
                call.answer(None)
                if call.method == "infer":
                    call.respond(True, None, {}, None, "callee", 1, None)
            return [event for event in events if event[0] != triton.CALL]

    backend.triton = Server()
    count = CALLBACKS_MAX + 8
    serial = backend._serial
    one_too_many = struct.pack("<q", RESPONSES_MAX + 1)
    jobs = backend.execute(*(request_of("", ("IN", "INT64", [1], one_too_many)) for _ in range(count)))
    # Each is released, and has its responses; that there are no more is one more event.
    backend.wait(lambda: min(len(job.events) for job in jobs) == RESPONSES_MAX + 1)
    backend.wait(lambda: sum(len(job.events) == RESPONSES_MAX + 3 for job in jobs) == count - CALLBACKS_MAX)
    for index in range(count):
        backend.instance.cancel(serial + index)
    backend.wait(lambda: all(len(job.events) == RESPONSES_MAX + 3 for job in jobs))
    assert all(numbers_of(job) == list(range(RESPONSES_MAX + 1)) for job in jobs)
