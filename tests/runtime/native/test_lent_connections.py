# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Connections that an instance reads by itself: the responses to their clients, and the events for Python."""

import contextlib
import ctypes
import gc
import os
import random
import resource
import select
import socket
import struct
import sys
import threading
import time
import weakref
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyruntime.runtime.frontends.http.request_head import read_plain
from pyruntime.runtime.native import _triton
from pyruntime.runtime.native._codecs import InferReader
from tests.own_descriptors import own_descriptors

from .plain import (
    ALL_LATER,
    DOCUMENT,
    ECHO,
    ERROR_RESPONSE,
    EXECUTE_FAILS,
    FAILED_STATISTICS,
    FENCE,
    GO,
    HEAD,
    KEEP_FACTORY,
    LOST,
    NO_OUTPUT,
    NO_STATISTICS,
    NOTE,
    OTHER_DATATYPE,
    OTHER_NAME,
    OTHER_SHAPE,
    OTHER_THREAD,
    PARAMETER,
    RELEASE_LATER,
    REPORTED,
    RESPOND_LATER,
    SHORTER,
    SIZE,
    THROW,
    TIMES,
    TWO_OUTPUTS,
    TWO_REPORTS,
    UNTIL_CANCELLED,
    WAIT,
    Job,
    answer,
    contents,
    described,
    document,
    document_of,
    head_of,
    tensor,
)

ROWS = REPORTED[0]
# The contents of nearly the longest plain request.
LARGE = 16_000


def tcp_pair():
    """The server's end of a connection, and the client's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = socket.create_connection(listener.getsockname())
        return listener.accept()[0], peer


def head_before(document, size):
    """The head of a request with so many bytes behind its document."""
    lines = b"POST /v2/models/model/infer HTTP/1.1\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n"
    return lines % (len(document), len(document) + size)


class Connection:
    """A connection that is lent, as Python has it, and its client at the other end."""

    def __init__(self, requests, size=SIZE, ends=None):
        self.requests = requests
        self.size = size
        self.document = document_of(size)
        self.head = head_before(self.document, size)
        self.plain = requests.plain()
        self.server, self.peer = ends or socket.socketpair()
        self.client = _triton.ClientSocket(self.server.fileno())
        self.lent = None
        self.jobs = []

    def adopt(self, serial, arrived_ns, id, rows):
        """Native code calls this for a request that becomes Python's."""
        job = Job()
        job.serial, job.arrived_ns, job.id, job.rows = serial, arrived_ns, id, rows
        self.jobs.append(job)
        return job

    @property
    def job(self):
        """The one that was adopted."""
        (job,) = self.jobs
        return job

    def request(self, action):
        return self.head + self.document + contents(action, self.size)

    def response(self, action):
        return head_of(self.size) + contents(action, self.size)

    def lend(self, action=ECHO, data=None):
        """Lend it, with a request; whether it is lent."""
        data = self.request(action) if data is None else data
        self.lent = self.requests.instance.lend(self.plain, self, data, self.client)
        return self.lent is not None

    def take_back(self):
        """Take the connection back; the bytes that were read of the next request."""
        return self.lent.take_back()

    def send(self, *actions):
        self.peer.sendall(b"".join(map(self.request, actions)))

    def receive(self, size):
        """Receive this number of bytes as the client."""
        got = b""
        while len(got) < size:
            got += self.peer.recv(size - len(got)) or pytest.fail(f"it ends after {got}")
        return got

    def answered(self, *actions):
        """Wait until the client has the answers to these, and see that they are right."""
        for action in actions:
            assert self.receive(len(self.response(action))) == self.response(action)

    def got(self):
        """The other bytes that the client was sent."""
        return received(self.peer)

    def left(self):
        """The bytes that the client has sent and that were not read."""
        return received(self.server)

    def close(self):
        if self.lent is not None:
            self.take_back()
            self.lent = None
        self.server.close()
        self.peer.close()


def is_plain(request):
    """Whether native code shall read a request, in one piece, that is like those of a Connection."""
    end = request.find(b"\r\n\r\n") + 4
    head = read_plain(request[:end]) if end > 3 else None
    if head is None or not request.startswith(b"POST /v2/models/model/infer HTTP/1.1\r\n") or not head.header_length:
        return False
    reader = InferReader([("IN", "UINT8", 1, (-1,), True)], ["OUT", "OUT2"], 0)
    read = reader.read_document(request[end:], head.header_length, 0, None)
    return end + head.content_length == len(request) and read is not None and read[5] is True


def received(end):
    """The bytes that can be read at an end of a connection."""
    got = b""
    with contextlib.suppress(BlockingIOError):
        while data := end.recv(1 << 20, socket.MSG_DONTWAIT):
            got += data
    return got


def flushed(requests):
    """Wait until the instance has read all data of the one lent connection; the events until then."""
    jobs = [requests.act(requests.plain(), ECHO) for _ in range(2)]
    return [event for event in requests.settled() if event[1] not in jobs]


def split(events):
    """How many requests were counted, and the sums; and the other events."""
    count, sums, others = 0, [0] * 9, []
    for event in events:
        if event[0] != "counted":
            others.append(event)
            continue
        _, _, some, rows, more = event
        assert rows == ROWS
        assert some > 0
        count += some
        sums = [old + new for old, new in zip(sums, more, strict=True)]
    return count, sums, others


def fates(events, job):
    """How often a job was answered for good, released, and said to be executed."""
    answered = released = executed = 0
    for what, subject, *rest in events:
        if what == "executed":
            executed += rest[0][0] == job.serial
        elif subject is job:
            answered += what in ("answered", "encoded", "sent") or (what == "response" and rest[0])
            released += what in ("answered", "encoded", "released") or (what == "sent" and rest[2])
            executed += what in ("answered", "encoded", "sent") and rest[-1] is not None
    return answered, released, executed


ONCE = (1, 1, 1)


@pytest.fixture
def connect(requests):
    """`connect(size=, ends=)`: a Connection of the instance's."""
    made = []

    def connect(size=SIZE, ends=None):
        made.append(Connection(requests, size, ends))
        return made[-1]

    yield connect
    requests.let_go()
    for each in made:
        each.close()
    requests.act(requests.plain(), GO)
    requests.settled()


@pytest.fixture
def connection(connect):
    """One that is not lent yet."""
    return connect()


class TestCounted:
    """Requests that are only counted in sums."""

    def test_the_same_bytes(self, requests, connection):
        """As the client gets from a request that Python has given the instance."""
        body = DOCUMENT + contents(ECHO)
        arguments = (connection.plain, Job(), body, 0, len(DOCUMENT), 1000, connection.client)
        assert requests.instance.execute_plain(*arguments) == (1, "")
        assert [event[0] for event in requests.settled()] == ["sent"]
        usual = connection.got()
        assert connection.lend()
        connection.send(ECHO, ECHO)
        assert connection.receive(3 * len(usual)) == usual * 3
        assert not connection.got()

    def test_sums(self, requests, connection):
        """They are exact, and nothing is adopted."""
        before_ns = time.monotonic_ns()
        connection.lend()
        connection.answered(ECHO)
        for _ in range(100):
            connection.send(ECHO)
            connection.answered(ECHO)
        count, sums, others = split(requests.settled())
        spent_ns = time.monotonic_ns() - before_ns
        assert (count, others, connection.jobs, connection.lent.begun) == (101, [], [], 101)
        assert sums[:4] == [0, count, count, count]
        assert sums[5:8] == [count, count, count]
        assert 0 < sums[4] <= spent_ns
        assert 0 < sums[8] <= spent_ns

    def test_one_event(self, requests, connection):
        """Until Python takes it it is one; and Python is not told that there is any."""
        poll = select.poll()
        poll.register(_triton.descriptor(), select.POLLIN)
        requests.hold(connection.plain)
        requests.take()
        requests.events.clear()
        connection.lend()
        connection.send(ECHO)
        requests.let_go()
        connection.answered(ECHO, ECHO)
        requests.wait(lambda: requests.events)  # of the held request
        requests.events.clear()
        connection.send(NO_STATISTICS)
        connection.answered(NO_STATISTICS)
        assert not poll.poll(0)
        requests.settled()
        for _ in range(3):
            for _ in range(3):
                connection.send(ECHO)
                connection.answered(ECHO)
            ((what, owner, count, rows, _),) = requests.settled()
            assert (what, owner, count, rows) == ("counted", requests.native, 3, ROWS)

    def test_no_statistics(self, requests, connection):
        """Without statistics, the time from arrival to response counts as computing."""
        connection.lend(NO_STATISTICS)
        connection.answered(NO_STATISTICS)
        count, sums, others = split(requests.settled())
        assert (count, others, sums[:2], sums[3]) == (1, [], [0, 0], 0)
        assert 0 < sums[2] == sums[4]

    def test_reports(self, requests, connection):
        """Further reports of a backend are events, as without lending."""
        connection.lend(TWO_REPORTS)
        connection.answered(TWO_REPORTS)
        count, _, others = split(requests.settled())
        assert (count, others) == (1, [("batch", requests.native, REPORTED)])

    @pytest.mark.parametrize("action", [ECHO, OTHER_THREAD])
    def test_any_thread(self, requests, connection, action):
        """The thread that responds makes no difference."""
        connection.lend(action)
        connection.send(action)
        connection.answered(action, action)
        assert split(requests.settled())[::2] == (2, [])

    def test_still_executing(self, requests, connection):
        """A request is counted when Execute has returned."""
        connection.lend(WAIT)
        connection.answered(WAIT)
        requests.library.PlainAwaitFence()
        requests.take()
        assert requests.events == []
        requests.let_go()
        assert split(requests.settled())[::2] == (1, [])

    def test_several_sizes(self, requests, connect):
        """Any number of kinds of requests at a time."""
        sizes = (SIZE, 1, 5000, LARGE)
        connections = [connect(size) for size in sizes]
        for each in connections:
            assert each.lend()
        for each in connections:
            each.send(ECHO)
            each.answered(ECHO, ECHO)
        assert split(requests.settled())[::2] == (2 * len(sizes), [])

    @settings(
        max_examples=6 * settings.default.max_examples // 10,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        actions=st.lists(st.sampled_from([ECHO, NO_STATISTICS, TWO_REPORTS, OTHER_THREAD]), min_size=1, max_size=4),
        cuts=st.lists(st.integers(1, 4 * 110), max_size=8),
        tail=st.integers(0, 70),
    )
    def test_pieces(self, requests, actions, cuts, tail):
        """Requests in any pieces are answered; the part of another one is returned unchanged."""
        connection = Connection(requests)
        connection.lend()
        connection.answered(ECHO)
        part = connection.request(ECHO)[:tail]
        said = b"".join(map(connection.request, actions)) + part
        events = []
        for start, end in pairwise(sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})):
            connection.peer.sendall(said[start:end])
            events += flushed(requests)
        connection.answered(*actions)
        events += flushed(requests)
        count, _, others = split(events)
        assert (count, connection.lent.begun) == (1 + len(actions), 1 + len(actions))
        assert {event[0] for event in others} <= {"batch"}
        assert connection.take_back() + connection.left() == part
        assert connection.jobs == []
        connection.close()

    def test_pipelined(self, requests, connection):
        """They wait for each other in the connection."""
        requests.hold(connection.plain)
        connection.lend()
        connection.send(*[ECHO, NO_STATISTICS] * 50)
        requests.let_go()
        connection.answered(ECHO, *[ECHO, NO_STATISTICS] * 50)
        count, _, others = split(requests.settled())
        assert (count, [event[0] for event in others]) == (101, ["encoded"])

    def test_another_shape_each(self, requests, connection):
        """Requests of any size, with any head and any id, one after the other."""
        connection.lend()
        connection.answered(ECHO)
        for number in range(60):
            size = (number * 7919) % LARGE
            head = document(tensor("IN", "UINT8", [size], size), id=str(number))
            lines = head_before(head, size).replace(b"HTTP/1.1\r\n", b"HTTP/1.1\r\nX-Number: %d\r\n" % number)
            connection.peer.sendall(lines + head + contents(ECHO, size))
            expected = answer(("OUT", "UINT8", [size], contents(ECHO, size)), id=str(number))
            assert connection.receive(len(expected)) == expected
        assert split(requests.settled())[::2] == (61, [])

    @pytest.mark.parametrize(
        ("action", "outputs"),
        [
            (OTHER_NAME, [("OUT2", "UINT8", [SIZE], contents(OTHER_NAME))]),
            (SHORTER, [("OUT", "UINT8", [SIZE - 1], contents(SHORTER)[:-1])]),
            (TWO_OUTPUTS, [(name, "UINT8", [SIZE], contents(TWO_OUTPUTS)) for name in ("OUT", "OUT2")]),
            (NO_OUTPUT, []),
        ],
    )
    def test_other_outputs(self, requests, connection, action, outputs):
        """Responses of any form follow each other."""
        connection.lend()
        connection.answered(ECHO)
        connection.send(action)
        assert connection.receive(len(answer(*outputs))) == answer(*outputs)
        assert split(requests.settled())[::2] == (2, [])

    @settings(
        max_examples=6 * settings.default.max_examples // 10,
        deadline=None,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    )
    @given(
        sizes=st.lists(st.integers(0, 300), min_size=1, max_size=5),
        cuts=st.lists(st.integers(1, 5 * 400), max_size=8),
    )
    def test_other_shapes_in_pieces(self, requests, sizes, cuts):
        """However requests of other sizes are cut and pipelined, each is answered, or given back whole, in order."""
        connection = Connection(requests)
        connection.lend()
        connection.answered(ECHO)
        shapes = [Connection(requests, size) for size in sizes]
        said = b"".join(each.request(ECHO) for each in shapes)
        for start, end in pairwise(sorted({0, len(said), *(cut for cut in cuts if cut < len(said))})):
            connection.peer.sendall(said[start:end])
            for _ in range(2 + 2 * len(shapes)):  # each has its turn
                requests.act(requests.plain(), ECHO)
            requests.settled()
        answered = shapes[: connection.lent.begun - 1]
        assert connection.got() == b"".join(each.response(ECHO) for each in answered)
        read = b"".join(each.request(ECHO) for each in answered)
        assert read + connection.take_back() + connection.left() == said
        assert connection.jobs == []
        for each in (connection, *shapes):
            each.lent = None
            each.close()
        flushed(requests)

    @pytest.mark.parametrize("header", ["Traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "A: b"])
    def test_headers_that_mean_nothing(self, requests, connection, header):
        """A span, which counts only while requests are traced, and unknown headers."""
        connection.lend()
        connection.peer.sendall(connection.request(ECHO).replace(b"\r\n", f"\r\n{header}\r\n".encode(), 1))
        connection.answered(ECHO, ECHO)
        assert split(requests.settled())[::2] == (2, [])

    def test_rows(self, requests, connection):
        """A request for which the backend reports other rows than it has, has an event of its own."""
        connection.plain = requests.plain(
            inputs=[("IN", "UINT8", 1, [-1, -1], True)], outputs=[("OUT", "UINT8", [-1, -1])], rows_max=2
        )
        head = document(tensor("IN", "UINT8", [2, 4], SIZE), id="me")
        connection.lend(data=head_before(head, SIZE) + head + contents(ECHO))
        (event,) = requests.settled()
        assert (event[0], event[1], event[2], event[4], event[5]) == ("sent", connection.job, None, True, TIMES)
        assert event[6][3] == REPORTED
        assert (connection.job.id, connection.job.rows) == ("me", 2)
        assert connection.got() == answer(("OUT", "UINT8", [2, 4], contents(ECHO)), id="me")


class TestLend:
    """The requests and connections that can be lent."""

    def test_not_plain(self, requests, connection):
        """A request that is not plain, or not one."""
        good = connection.request(ECHO)
        others = (good.replace(DOCUMENT, DOCUMENT[::-1]), good.replace(b"POST", b"PUT"), good.replace(b"1.1", b"1.0"))
        for data in (b"", good[:-1], good + b"x", *others):
            assert not connection.lend(data=data)
        assert not flushed(requests)
        assert not connection.got()

    def test_another_model(self, requests, make, connection):
        """What reads the requests to one model reads none of another."""
        connection.plain = make().plain()
        assert not connection.lend()

    def test_an_instance_that_is_not_initialized(self, requests, connection):
        """It reads nothing, neither before nor after."""
        fresh = _triton.Instance(requests.model, None, "fresh", 2, 0, False, [], [], "{}")
        arguments = (connection.plain, connection, connection.request(ECHO))
        assert fresh.lend(*arguments, connection.client) is None
        fresh.initialize()
        fresh.finalize()
        assert fresh.lend(*arguments, connection.client) is None

    @pytest.mark.parametrize("index", range(4))
    def test_wrong_arguments(self, requests, connection, index):
        """Arguments of a wrong type are refused."""
        data = connection.request(ECHO)
        arguments = [connection.plain, connection, data, connection.client]
        arguments[index : index + 1] = [] if index == 1 else ["wrong"]
        with pytest.raises(TypeError):
            requests.instance.lend(*arguments)

    def test_once(self, requests, connection):
        """A connection that is lent is not lent once more, and goes on."""
        connection.lend()
        lent = connection.lent
        assert not connection.lend()
        connection.lent = lent
        connection.send(ECHO)
        connection.answered(ECHO, ECHO)
        assert split(requests.settled())[::2] == (2, [])

    @pytest.mark.parametrize("left", [0, 1])
    def test_no_descriptors(self, requests, connection, left):
        """The first that is lent needs some; when there are any, it can be lent."""
        lowest = os.dup(0)
        os.close(lowest)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + left, limits[1]))
        try:
            assert not connection.lend()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert connection.lend()
        connection.answered(ECHO)
        assert split(requests.settled())[::2] == (1, [])


class TestReturned:
    """The causes that end lending before a request has begun."""

    def returned(self, requests, connection):
        """Wait until it is returned; the bytes that were read, and those that are still to be read."""
        requests.wait(lambda: any(event[0] == "returned" for event in requests.events))
        ((_, found),) = [event for event in requests.events if event[0] == "returned"]
        assert found is connection
        data = connection.take_back()
        assert not connection.jobs
        # The instance leaves the returned connection alone when it handles others.
        requests.events = []
        assert split(flushed(requests))[2] == []
        assert connection.take_back() == b""
        return data + connection.left()

    def test_every_byte_counts(self, requests, connection):
        """A request that differs anywhere is plain, or given back, whether or not it comes in one piece."""
        good, found = connection.request(ECHO).replace(b"\r\n", b"\r\nUser: client\r\n", 1), set()
        for at in range(len(good) - SIZE):
            for cut in (0, at):
                connection.lend()
                connection.answered(ECHO)
                other = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
                connection.peer.sendall(other[:cut])
                if cut:
                    flushed(requests)
                connection.peer.sendall(other[cut:] + good)
                found.add(is_plain(other))
                if is_plain(other):
                    connection.answered(ECHO, ECHO)
                    flushed(requests)  # a request has its answer before it is over
                    assert connection.take_back() == b""
                else:
                    assert self.returned(requests, connection) == other + good
        assert found == {True, False}
        assert not connection.got()

    @pytest.mark.parametrize(
        "lines",
        [
            "Accept-Encoding: gzip",
            "Accept-Encoding: *",
            "Connection: close",
            "Expect: 100-continue",
            "Transfer-Encoding: chunked",
            "Content-Encoding: gzip",
            "Content-Length: 5",
            "Endpoint-Load-Metrics-Format: text",
            "Upgrade: h2c",
            " folded",
            "X: \xe9",
        ],
    )
    def test_headers(self, requests, connection, lines):
        """Headers that make a difference are Python's."""
        other = connection.request(ECHO).replace(b"\r\n", f"\r\n{lines}\r\n".encode("latin-1"), 1)
        connection.lend()
        connection.peer.sendall(other)
        assert self.returned(requests, connection) == other
        connection.answered(ECHO)

    @pytest.mark.parametrize("target", ["/v2/models/other/infer", "/v2/models/model/versions/1/infer", "/v2"])
    def test_another_target(self, requests, connection, target):
        """It may be another model's; Python finds that."""
        other = connection.request(ECHO).replace(b"/v2/models/model/infer", target.encode())
        connection.lend()
        connection.peer.sendall(other)
        assert self.returned(requests, connection) == other
        connection.answered(ECHO)

    def test_a_document_that_python_must_see(self, requests, connection):
        """A timeout, or outputs that are not binary."""
        for parameters in ({"timeout": 1}, {"binary_data_output": False}, {"own": 0.5}):
            head = document(tensor("IN", "UINT8", [SIZE], SIZE), parameters=parameters)
            other = head_before(head, SIZE) + head + contents(ECHO)
            connection.lend()
            connection.answered(ECHO)
            connection.peer.sendall(other)
            assert self.returned(requests, connection) == other

    def test_as_soon_as_it_is_clear(self, requests, connection):
        """Not only when all of it is there."""
        connection.lend()
        connection.peer.sendall(b"POST /v2/models/other")
        assert self.returned(requests, connection) == b"POST /v2/models/other"
        connection.answered(ECHO)

    def test_too_long(self, requests, connect, connection):
        """Its head says so: nothing waits for the body."""
        other = connect(1 << 16).request(ECHO)
        connection.lend()
        connection.send(ECHO)
        connection.answered(ECHO, ECHO)
        connection.peer.sendall(other[:300])
        assert self.returned(requests, connection) == other[:300]

    @pytest.mark.parametrize("size", [8, 17])
    def test_a_head_without_an_end(self, requests, connection, size):
        """It is Python's once it is longer than a plain one, in KiB."""
        connection.lend()
        connection.answered(ECHO)
        other = connection.head[:37] + b"X: " + b"x" * (size << 10)
        connection.peer.sendall(other)
        assert self.returned(requests, connection) == other

    def test_more_than_a_request(self, requests, connection):
        """A request has the announced length, whatever follows it."""
        connection.lend()
        connection.peer.sendall(connection.request(NO_STATISTICS) + b"\r\n" + connection.request(ECHO))
        assert self.returned(requests, connection) == b"\r\n" + connection.request(ECHO)
        connection.answered(ECHO, NO_STATISTICS)

    @pytest.mark.parametrize("ends", [socket.socketpair, tcp_pair])
    @pytest.mark.parametrize("length", [0, 1, 60, -1])
    @pytest.mark.parametrize("is_closed", [False, True])
    def test_end(self, requests, connect, ends, length, is_closed):
        """The client is gone, or sends no more, between requests or in the middle of one."""
        connection = connect(ends=ends())
        connection.lend()
        connection.send(ECHO)
        part = connection.request(ECHO)[:length]
        connection.answered(ECHO, ECHO)
        connection.peer.sendall(part)
        connection.peer.close() if is_closed else connection.peer.shutdown(socket.SHUT_WR)
        assert self.returned(requests, connection) == part
        assert connection.server.recv(1) == b""

    def test_answered_before_the_end(self, requests, connection):
        """A client that has finished sending still gets the responses that are due."""
        connection.lend()
        connection.send(ECHO, NO_STATISTICS)
        connection.peer.shutdown(socket.SHUT_WR)
        connection.answered(ECHO, ECHO, NO_STATISTICS)
        assert self.returned(requests, connection) == b""

    @pytest.mark.parametrize("length", [0, 10])
    def test_reset(self, requests, connect, length):
        """It ends as others do."""
        connection = connect(ends=tcp_pair())
        connection.lend()
        connection.answered(ECHO)
        connection.peer.sendall(connection.request(ECHO)[:length])
        flushed(requests)
        connection.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.peer.close()
        assert self.returned(requests, connection) == connection.request(ECHO)[:length]
        assert connection.server.recv(1) == b""

    def test_gone_before_the_answer(self, requests, connection):
        """A request whose client is gone is counted, so that Python does not try again."""
        requests.hold(connection.plain)
        connection.lend()
        connection.peer.close()
        requests.let_go()
        requests.wait(lambda: any(event[0] == "returned" for event in requests.events))
        count, _, others = split(flushed(requests))
        assert count == 1
        assert [event[0] for event in others if event[0] == "returned"] == ["returned"]
        assert not connection.jobs

    def test_shut_down(self, requests, connection):
        """Python has closed the connection."""
        connection.lend()
        connection.answered(ECHO)
        connection.client.shut_down()
        assert self.returned(requests, connection) == b""

    def test_lent_again(self, requests, connection):
        """As often as it is returned."""
        for _ in range(50):
            assert connection.lend()
            connection.answered(ECHO)
            connection.peer.sendall(b"GET / HTTP/1.1\r\n\r\n")
            assert self.returned(requests, connection) == b"GET / HTTP/1.1\r\n\r\n"


class TestAdopted:
    """Requests that have events for Python."""

    FAILURES = {ERROR_RESPONSE: "as the request says", EXECUTE_FAILS: "Execute fails", THROW: "threw", LOST: "sent no"}
    OTHERS = (OTHER_DATATYPE, OTHER_SHAPE, PARAMETER)
    LATER = (RELEASE_LATER, ALL_LATER, RESPOND_LATER, KEEP_FACTORY)

    def until_executed(self, requests, connection):
        """Take events, as they come, until Execute has returned."""
        requests.wait(lambda: connection.jobs and connection.job.serial in requests._executed())
        events, requests.events = requests.events, []
        return events

    @pytest.mark.parametrize("is_taken", [False, True])
    @pytest.mark.parametrize("action", [*FAILURES, *OTHERS, *LATER, FAILED_STATISTICS])
    def test_once(self, requests, connection, action, is_taken):
        """It is answered, released and executed once each, by whomever; and the next request is for Python to read."""
        before_ns = time.monotonic_ns()
        connection.lend()
        connection.send(ECHO, action, ECHO)
        connection.answered(ECHO, ECHO)
        events = self.until_executed(requests, connection) if is_taken else []
        events += flushed(requests)
        if action in self.LATER:
            requests.act(connection.plain, GO)
        events += flushed(requests) + flushed(requests)
        count, _, others = split(events)
        job = connection.job
        assert (count, connection.lent.begun) == (2, 3)
        assert fates(others, job) == ONCE
        assert before_ns < job.arrived_ns < time.monotonic_ns()
        assert connection.take_back() == b""
        assert connection.left() == connection.request(ECHO)
        (answer,) = [event for event in others if event[1] is job and event[0] not in ("released",)]
        if action in self.FAILURES:
            failure = answer[2] if answer[0] == "answered" else answer[3]
            assert self.FAILURES[action] in failure[1]
            assert not connection.got()
        elif action in self.OTHERS:
            assert answer[0] in ("answered", "response")
            assert not connection.got()
        else:
            assert (answer[0], answer[2]) == ("sent", None)
            assert connection.got() == connection.response(action)

    def test_one_event(self, requests, connection):
        """A response that was sent, and reported as no success, has the same event as without lending."""
        connection.lend(FAILED_STATISTICS)
        (event,) = flushed(requests)
        assert (event[0], event[1], event[2], event[4]) == ("sent", connection.job, None, True)
        assert event[5] == (False, 1, 2, 3, 4)
        assert event[6][0] == connection.job.serial
        assert event[6][3] == REPORTED

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_no_room_for_all(self, requests, connect, is_taken):
        """Python gets the rest of a response that the client does not take."""
        connection = connect(LARGE)
        connection.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        connection.lend()
        events = self.until_executed(requests, connection) if is_taken else []
        events += flushed(requests)
        assert fates(events, connection.job) == ONCE
        ((left, sent_ns),) = [event[2:4] for event in events if event[0] == "sent"]
        assert sent_ns > 0
        got = connection.receive(len(connection.response(ECHO)) - len(left))
        assert 0 < len(left) < LARGE
        assert got + left == connection.response(ECHO)
        assert not connection.got()

    def test_no_room_at_all(self, requests, connection):
        """A client that only sends has its connection back with Python at last; every response comes once."""
        connection.server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        connection.lend()
        events = flushed(requests)
        while not connection.jobs:
            connection.send(ECHO)
            events += flushed(requests)
        events += flushed(requests)
        count, _, others = split(events)
        assert fates(others, connection.job) == ONCE
        ((left, *_),) = [event[2:] for event in others if event[0] == "sent"]
        assert connection.got() + left == connection.response(ECHO) * (count + 1)
        assert connection.lent.begun == count + 1
        assert connection.left() == b""

    def test_cancel(self, requests, connection):
        """It is found by its number."""
        connection.lend(UNTIL_CANCELLED)
        while not connection.lent.begun:
            pass
        assert connection.take_back() == b""
        requests.instance.cancel(connection.job.serial)
        connection.answered(UNTIL_CANCELLED)
        assert fates(requests.settled(), connection.job) == ONCE

    def test_adopt_fails(self, requests, connection, monkeypatch):
        """The exception is reported as unraisable, and the events have no job."""
        told = []
        monkeypatch.setattr(sys, "unraisablehook", told.append)
        monkeypatch.setattr(connection, "adopt", None)
        connection.lend(PARAMETER)
        events = flushed(requests)
        assert [each.exc_type for each in told] == [TypeError]
        assert [event[:2] for event in events if event[0] == "answered"] == [("answered", None)]
        assert connection.take_back() == b""


class TestTakenBack:
    """Python wants to have it."""

    def test_idle(self, requests, connection):
        """The connection is not read any more, and no data is lost."""
        connection.lend()
        connection.answered(ECHO)
        events = flushed(requests)  # a request has its answer before it is over
        assert connection.take_back() == b""
        connection.send(ECHO)
        assert split(events + flushed(requests))[::2] == (1, [])
        assert connection.left() == connection.request(ECHO)
        assert (connection.take_back(), connection.lent.begun) == (b"", 1)

    def test_part(self, requests, connection):
        """The part of a request that was read is given to Python, once."""
        connection.lend()
        connection.answered(ECHO)
        part = connection.request(ECHO)[:-1]
        connection.peer.sendall(part[:50])
        flushed(requests)
        connection.peer.sendall(part[50:])
        flushed(requests)
        assert connection.take_back() == part
        assert connection.take_back() == b""
        assert not flushed(requests)

    def test_not_begun(self, requests, connection):
        """The request that it was lent with comes back."""
        requests.hold(connection.plain)
        connection.lend()
        assert connection.take_back() == connection.request(ECHO)
        assert connection.take_back() == b""
        connection.send(NO_STATISTICS)
        requests.let_go()
        flushed(requests)
        assert connection.left() == connection.request(NO_STATISTICS)
        assert (connection.lent.begun, connection.jobs) == (0, [])
        assert not connection.got()

    @pytest.mark.parametrize("is_claimed", [False, True])
    def test_before_the_response(self, requests, connection, is_claimed):
        """The request is adopted at once; if Python claims it, native code does not answer it."""
        connection.lend(FENCE)
        requests.library.PlainAwaitFence()
        connection.send(ECHO)
        assert connection.take_back() == b""
        job = connection.job
        assert connection.left() == connection.request(ECHO)
        if is_claimed:
            assert requests.instance.claim(job.serial)
        requests.let_go()
        events = requests.settled()
        assert fates(events, job) == ONCE
        ((what, _, response, *_),) = events
        if is_claimed:
            assert (what, response) == ("encoded", connection.response(FENCE))
            assert not connection.got()
        else:
            assert (what, response) == ("sent", None)
            connection.answered(FENCE)
        assert split(events)[0] == 0

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_behind_the_response(self, requests, connection, is_taken):
        """A request that was answered cannot be claimed: its event is there at once."""
        connection.lend(WAIT)
        requests.library.PlainAwaitFence()
        assert connection.take_back() == b""
        job = connection.job
        assert not requests.instance.claim(job.serial)
        events = []
        if is_taken:
            requests.take()
            events, requests.events = requests.events, []
            ((what, found, rest, _, released, times, execution),) = events
            assert (what, found, rest, released, times, execution) == ("sent", job, None, True, TIMES, None)
        requests.let_go()
        events += requests.settled()
        assert fates(events, job) == ONCE
        connection.answered(WAIT)
        assert not connection.got()

    def test_behind_its_return(self, requests, connection):
        """Bytes come once, with the event or with `take_back`, whichever is first."""
        poll = select.poll()
        poll.register(_triton.descriptor(), select.POLLIN)
        for is_taken in (False, True):
            connection.lend()
            connection.answered(ECHO)
            requests.settled()
            connection.peer.sendall(b"GET")
            assert poll.poll(60_000)
            if is_taken:
                requests.take()
                assert requests.events == [("returned", connection)]
                requests.events.clear()
            assert connection.take_back() == b"GET"
            assert flushed(requests) == []

    @pytest.mark.parametrize("action", [PARAMETER, FAILED_STATISTICS, ERROR_RESPONSE, RESPOND_LATER, LOST])
    def test_behind_its_adoption(self, requests, connection, action):
        """A request that Python does not know of yet is adopted at once, and only once."""
        poll = select.poll()
        poll.register(_triton.descriptor(), select.POLLIN)
        connection.lend()
        connection.answered(ECHO)
        connection.send(action)
        assert poll.poll(60_000)
        assert connection.take_back() == b""
        job = connection.job
        assert connection.take_back() == b""
        requests.act(connection.plain, GO)
        events = flushed(requests) + flushed(requests)
        assert fates(events, job) == ONCE
        assert connection.job is job

    def test_by_who_adopts(self, requests, connection, monkeypatch):
        """`adopt` may take the connection back, which Python has already."""
        rests = []
        adopt = connection.adopt
        monkeypatch.setattr(connection, "adopt", lambda *told: (rests.append(connection.take_back()), adopt(*told))[1])
        connection.lend(PARAMETER)
        assert fates(flushed(requests), connection.job) == ONCE
        assert rests == [b""]

    def test_lent_again(self, requests, connection):
        """A connection can be lent any number of times, with the data that was sent meanwhile."""
        events = []
        for number in range(100):
            connection.send(ECHO)
            assert connection.lend(data=connection.server.recv(1000))
            connection.send(NO_STATISTICS)
            connection.answered(ECHO, NO_STATISTICS)
            assert connection.lent.begun == 2
            if number % 10 == 0:
                events += requests.settled()
            assert connection.take_back() == b""  # the last one may be adopted
        count, _, others = split(events + requests.settled())
        assert count + len(connection.jobs) == 200
        assert all(fates(others, job) == ONCE for job in connection.jobs)

    def test_lent_again_while_it_executes(self, requests, connection):
        """An execution for the previous lending does not affect the new one."""
        connection.lend(WAIT)
        requests.library.PlainAwaitFence()
        connection.take_back()
        first = connection.lent
        assert connection.lend()
        requests.let_go()
        connection.answered(WAIT, ECHO)
        count, _, others = split(flushed(requests))
        assert count == 1
        assert fates(others, connection.job) == ONCE
        assert (first.begun, connection.lent.begun, first.take_back()) == (1, 1, b"")


class TestTogether:
    """Several connections, and batches that Python gives."""

    def notes(self, requests):
        """The notes of the backend, in order."""
        room = (ctypes.c_uint8 * 1000)()
        requests.library.PlainNotes.restype = ctypes.c_size_t
        requests.library.PlainNotes.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        return list(room[: requests.library.PlainNotes(room, len(room))])

    def note(self, number):
        return bytes([NOTE, number]) + contents(ECHO)[2:]

    @pytest.mark.parametrize("count", [1, 3, 16, 40])
    def test_nobody_starves(self, requests, connect, count):
        """All have their turn, also those whom Python has, however much there is to do."""
        each = 10
        connections = [connect() for _ in range(count)]
        requests.hold(connections[0].plain)
        for number, connection in enumerate(connections):
            request = connection.head + DOCUMENT + self.note(number)
            connection.lend(data=request)
            connection.peer.sendall(request * (each - 1))
        plain = connections[0].plain
        posted = each * count
        memory = ctypes.create_string_buffer(self.note(255), SIZE)
        for number in range(posted):
            if number % 2:
                assert requests.give(plain, DOCUMENT + self.note(255))
            else:
                requests.serial += 1
                wires = [["", 0, 0, 0, None, "", [("IN", "UINT8", [SIZE], 0, SIZE, 0, 0)], "", None]]
                requests.instance.execute([Job()], wires, requests.serial, ctypes.addressof(memory))
        requests.let_go()
        for number, connection in enumerate(connections):
            for _ in range(each):
                assert connection.receive(len(HEAD) + SIZE) == HEAD + self.note(number)
        requests.settled()
        noted = self.notes(requests)
        assert len(noted) == posted + each * count
        assert [noted.count(number) for number in range(count)] == [each] * count
        seen = dict.fromkeys([*range(count), 255], 0)
        for number in noted:
            seen[number] += 1
            turns = [seen[number] for number in range(count)]
            # Each that is lent has had one request with it, and one more than others at most where not all fit into
            # one look of the system's; between any two of them one batch of Python's is executed, if there is one.
            assert max(turns) - min(turns) <= 3
            if seen[255] < posted:
                assert sum(turns) <= seen[255] + 2 * count + 1
            if sum(turns) < posted:
                assert seen[255] <= sum(turns) + 1

    def test_several_instances(self, requests, connect):
        """Each reads its own."""
        instances = [
            _triton.Instance(requests.model, number, f"model_{number}", 2, 0, False, [], [], "{}")
            for number in range(3)
        ]
        connections = [connect() for _ in range(6)]
        for instance in instances:
            instance.initialize()
        for number, connection in enumerate(connections):
            arguments = (connection.plain, connection, connection.request(ECHO))
            connection.lent = instances[number % 3].lend(*arguments, connection.client)
        for connection in connections:
            connection.answered(ECHO)
        for connection in connections:
            connection.take_back()
        for instance in instances:
            instance.finalize()
        requests.take()
        events, requests.events = requests.events, []
        jobs = [job for connection in connections for job in connection.jobs]
        counted = sum(event[2] for event in events if event[0] == "counted")
        assert counted + len(jobs) == len(connections)
        assert all(fates(events, job)[:2] == (1, 1) for job in jobs)

    def test_finalize(self, requests, connect):
        """After all connections were taken back, no more data is read, and requests under way have ended."""
        instance = _triton.Instance(requests.model, requests.native, "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        connections = [connect() for _ in range(5)]
        for connection in connections:
            arguments = (connection.plain, connection, connection.request(ECHO))
            connection.lent = instance.lend(*arguments, connection.client)
            connection.send(ECHO)
        rests = [connection.take_back() for connection in connections]
        instance.finalize()
        requests.take()
        events, requests.events = requests.events, []
        count, _, others = split(events)
        begun = sum(connection.lent.begun for connection in connections)
        jobs = [job for connection in connections for job in connection.jobs]
        assert begun == count + len(jobs)
        assert all(fates(others, job) == ONCE for job in jobs)
        for connection, rest in zip(connections, rests, strict=True):
            assert connection.take_back() == b""
            answers = connection.got()
            assert answers == connection.response(ECHO) * connection.lent.begun
            assert rest + connection.left() == connection.request(ECHO) * (2 - connection.lent.begun)
        assert instance.lend(*arguments, connection.client) is None

    @pytest.mark.parametrize("seed", range(4))
    def test_at_random(self, requests, connect, seed):
        """Connections are taken back at random: clients get each response once, in order, and Python every event."""
        Server(requests, [connect() for _ in range(4)], random.Random(seed)).run(400)


class TestGone:
    """A lending that has ended leaves no object and no descriptor behind."""

    @pytest.mark.parametrize("ending", ["returned", "taken back", "taken back at once", "closed", "dropped"])
    @pytest.mark.parametrize(
        "action",
        [ECHO, PARAMETER, FAILED_STATISTICS, ERROR_RESPONSE, THROW, LOST, RELEASE_LATER, RESPOND_LATER, KEEP_FACTORY],
    )
    def test_all_is_given_back(self, requests, action, ending):
        """The connection, the requests, the data and the descriptors."""
        seen = []
        for number in range(6):
            connection = Connection(requests)
            data = connection.request(ECHO)
            held = sys.getrefcount(data)
            connection.lend(data=data)
            assert sys.getrefcount(data) == held
            if ending != "taken back at once":
                connection.answered(ECHO)
                connection.send(action)
                flushed(requests)
            if ending == "returned":
                connection.peer.sendall(b"GET")
                flushed(requests)
            elif ending == "closed":
                connection.peer.close()
                flushed(requests)
            elif ending != "dropped" or action == ECHO:
                connection.take_back()
            requests.act(requests.plain(), GO)
            seen += map(weakref.ref, [connection, *connection.jobs])
            connection.lent = None
            connection.server.close()
            connection.peer.close()
            del connection, data
            flushed(requests)
            flushed(requests)
            if number == 0:
                descriptors = own_descriptors()
        assert [each() for each in seen] == [None] * len(seen)
        assert own_descriptors() == descriptors

    def test_an_instance(self, requests, connection):
        """The descriptors with which an instance reads connections are closed with it."""
        descriptors = own_descriptors()
        owner = Job()
        instance = _triton.Instance(requests.model, owner, "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        seen = weakref.ref(owner)
        arguments = (connection.plain, connection, connection.request(ECHO))
        connection.lent = instance.lend(*arguments, connection.client)
        connection.answered(ECHO)
        connection.take_back()
        instance.finalize()
        assert own_descriptors() > descriptors
        connection.lent = None
        del instance, owner
        gc.collect()
        requests.take()
        requests.events.clear()
        gc.collect()
        assert seen() is None
        assert own_descriptors() == descriptors

    def test_the_reader(self, requests, connection):
        """A lent connection keeps alive what reads its requests."""
        connection.lend()
        connection.answered(ECHO)
        connection.plain = None
        gc.collect()
        connection.send(ECHO)
        connection.answered(ECHO)


class Server:
    """Python, which lends connections, answers adopted requests, and takes connections back at random."""

    ACTIONS = (*[ECHO] * 6, NO_STATISTICS, FAILED_STATISTICS, PARAMETER, TWO_REPORTS, OTHER_THREAD)
    HEADS = (HEAD, HEAD.replace(b"200", b"299"))

    def __init__(self, requests, connections, choices):
        self.requests = requests
        self.connections = {each.server.fileno(): each for each in connections}
        self.choices = choices
        self.events = []
        # The part of the next request that was read; lent connections; those that wait for an answer; claimed ones.
        self.rests = dict.fromkeys(connections, b"")
        self.lent = set()
        self.waiting = {}
        self.claimed = set()
        self.jobs = []
        self.adopted = 0
        self.begun = 0
        for each in connections:
            each.adopt = lambda serial, *told, each=each: self.adopt(each, serial)

    def adopt(self, connection, serial):
        self.adopted += 1
        self.back(connection, b"")
        return self.begin(connection, serial)

    def begin(self, connection, serial):
        """A request is under way, the only one of its connection."""
        assert connection not in self.waiting
        job = self.waiting[connection] = Job()
        job.serial, job.connection = serial, connection
        self.jobs.append(job)
        return job

    def back(self, connection, rest):
        self.lent.remove(connection)
        self.begun += connection.lent.begun
        self.rests[connection] += rest

    def take_back(self, connection):
        rest = connection.take_back()
        if connection in self.lent:
            self.back(connection, rest)
        else:
            assert rest == b""

    def read(self, connection):
        """It has sent something."""
        if connection in self.waiting:
            self.claim(connection)
        else:
            self.rests[connection] += received(connection.server)

    def claim(self, connection):
        """Claim the answer of the request under way, because another request has come."""
        self.claimed.add(connection)
        self.requests.instance.claim(self.waiting[connection].serial)
        self.take()

    def go_on(self, connection):
        """Give the instance the next request, if it is there, or the connection with it; whether anything was done."""
        rest, size = self.rests[connection], len(connection.request(ECHO))
        if len(rest) >= size and connection in self.waiting and connection not in self.claimed:
            self.claim(connection)
            return True
        if connection in self.lent or connection in self.waiting or len(rest) < size:
            return False
        self.rests[connection] = rest[size:]
        if len(rest) == size and self.choices.random() < 0.8:
            assert connection.lend(data=rest)
            self.lent.add(connection)
            return True
        self.requests.serial += 1
        job = self.begin(connection, self.requests.serial)
        arguments = (connection.plain, job, rest[:size], len(connection.head), len(DOCUMENT), job.serial)
        assert self.requests.instance.execute_plain(*arguments, connection.client)
        self.requests.instance.wake()
        return True

    def take(self):
        """Take all events, and answer the requests that Python must answer."""
        self.requests.take()
        events, self.requests.events = self.requests.events, []
        self.events += events
        for what, subject, *rest in events:
            if what == "returned":
                self.back(subject, subject.take_back())
            elif what in ("encoded", "sent"):
                self.answer(subject, rest[0] or b"")
            elif what == "answered" or (what == "response" and rest[0]):
                *_, failure, outputs, parameters = rest[:3] if what == "answered" else rest
                assert failure is None
                assert parameters in (None, {"number": 5})
                ((*_, data),) = described(outputs)
                self.answer(subject, self.HEADS[1] + data)

    def answer(self, job, data):
        assert self.waiting.pop(job.connection) is job
        self.claimed.discard(job.connection)
        job.connection.server.sendall(data)

    def talk(self, connection, count, choices, over):
        """Be a client that makes so many requests, some at a time, in pieces; and tell what goes wrong."""
        failure = None
        try:
            while count:
                actions = choices.choices(self.ACTIONS, k=min(count, choices.randint(1, 4)))
                count -= len(actions)
                said = b"".join(map(connection.request, actions))
                cuts = sorted(choices.sample(range(len(said)), choices.randint(0, 3)))
                for start, end in pairwise([0, *cuts, len(said)]):
                    connection.peer.sendall(said[start:end])
                for action in actions:
                    got = connection.receive(len(HEAD) + SIZE)
                    assert got in [head + contents(action) for head in self.HEADS]
        except BaseException as exc:
            failure = exc
        over(failure)

    def run(self, count):
        """Serve each client so many requests, and see that nothing is missing."""
        ours, theirs = socket.socketpair()
        ended = []

        def over(failure):
            ended.append(failure)
            theirs.send(b"x")

        threads = [
            threading.Thread(
                target=self.talk, args=(each, count, random.Random(self.choices.random()), over), daemon=True
            )
            for each in self.connections.values()
        ]
        for thread in threads:
            thread.start()
        while len(ended) < len(threads):
            self.step(ours)
            if any(ended):
                break
        for connection in list(self.lent):
            self.take_back(connection)
        for connection in self.connections.values():
            connection.server.shutdown(socket.SHUT_RDWR)  # so that the threads end
        for thread in threads:
            thread.join()
        ours.close()
        theirs.close()
        assert ended == [None] * len(threads)
        counted, _, others = split(self.events + self.requests.settled())
        assert self.begun == counted + self.adopted
        assert counted + len(self.jobs) == count * len(threads)
        assert all(fates(others, job) == ONCE for job in self.jobs)
        assert self.adopted
        assert counted

    def step(self, over):
        """Perform all pending work; sometimes wait until there is some."""
        poll = select.poll()
        poll.register(_triton.descriptor(), select.POLLIN)
        poll.register(over, select.POLLIN)
        for descriptor, connection in self.connections.items():
            if connection not in self.lent and connection not in self.claimed:
                poll.register(descriptor, select.POLLIN)
        ready = poll.poll(60_000 if self.choices.random() < 0.2 else 0)
        self.take()
        for descriptor, _ in ready:
            connection = self.connections.get(descriptor)
            if connection is not None and connection not in self.lent and connection not in self.claimed:
                self.read(connection)
        if self.lent and self.choices.random() < 0.3:
            self.take_back(self.choices.choice(sorted(self.lent, key=id)))
        while any([self.go_on(connection) for connection in self.connections.values()]):
            pass
