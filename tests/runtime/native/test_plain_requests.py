# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that native code finds in bodies because they are plain, and responses that it encodes.

The first byte of a request's contents is the action of tests/native/plain.cc.
"""

import ctypes
import gc
import socket
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from pyruntime.runtime.frontends.http.plain_exchange import PLAIN_BYTES_MAX
from pyruntime.runtime.native import _triton
from pyruntime.utils.errors import Code

from .plain import (
    ALL_LATER,
    DOCUMENT,
    ECHO,
    ERROR_RESPONSE,
    EXECUTE_FAILS,
    FAILED_STATISTICS,
    GO,
    HEAD,
    LOST,
    NO_OUTPUT,
    NO_STATISTICS,
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
    TELL,
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
    tensor,
)

ECHOED = [("OUT", "UINT8", [SIZE], contents(ECHO))]


class TestRead:
    """The bodies that are read, and the requests that the backend gets."""

    def test_one_event(self, requests):
        """A backend that is done when Execute returns causes one event, which says all of it."""
        job = requests.act(requests.plain(), ECHO)
        assert (job.rows, job.id) == (1, "")
        ((what, found, response, times, execution),) = requests.settled()
        assert (what, found, response, times) == ("encoded", job, HEAD + contents(ECHO), TIMES)
        serial, start_ns, end_ns, reported = execution
        assert (serial, reported) == (job.serial, REPORTED)
        assert 0 < start_ns <= end_ns

    @pytest.mark.parametrize(
        ("members", "fields"),
        [
            ({}, {}),
            (
                {"parameters": {"sequence_id": 7, "sequence_start": True, "sequence_end": True, "priority": 3}},
                {"correlation": 7, "flags": 3},
            ),
            (
                {"parameters": {"sequence_id": "text"}, "outputs": [{"name": "OUT", "parameters": {}}]},
                {"correlation": "text", "outputs": ["OUT"]},
            ),
            (
                {"parameters": {"a": 1, "b": "x y", "c": True, "d": False, "e": ""}, "id": "me"},
                {"parameters": {"a": 1, "b": "x y", "c": True, "d": False, "e": ""}, "id": "me"},
            ),
            (
                {"outputs": [{"name": "OUT2", "parameters": {"binary_data": True}}, {"name": "OUT"}]},
                {"outputs": ["OUT2", "OUT"]},
            ),
        ],
    )
    def test_told_the_same(self, requests, members, fields):
        """The backend sees a plain request as any other request with the same contents."""
        usual = {"id": "", "correlation": 0, "flags": 0, "timeout": 0, "outputs": None, "parameters": ""} | fields
        parts = [contents(TELL), b"", b"abcdefgh", b"\x02\0\0\0ab"]
        shapes = ([SIZE], [0, 3], [2, 1], [1])
        names = ("IN", "EMPTY", "FP", "TEXT")
        kinds = ("UINT8", "INT64", "FP32", "BYTES")
        body = b"".join(parts)
        memory = ctypes.create_string_buffer(body, len(body))
        tensors, inputs, declared, at = [], [], [], 0
        for name, kind, shape, part, size in zip(names, kinds, shapes, parts, (1, 8, 4, 0), strict=True):
            tensors.append((name, kind, shape, at, len(part), 0, 0))
            inputs.append(tensor(name, kind, shape, len(part)))
            declared.append((name, kind, size, [-1] * len(shape), True))
            at += len(part)
        requests.instance.execute([Job()], [[*usual.values(), tensors, "", None]], 1000, ctypes.addressof(memory))
        (event, *_) = requests.settled()
        expected = bytes(event[3][0][3]).partition(b"\naligned ")[0]
        head = document(*inputs, **members)
        assert requests.give(requests.plain(inputs=declared), head + body, document_length=len(head)).id == usual["id"]
        ((_, _, response, *_),) = requests.settled()
        told, _, aligned = response.partition(b'"outputs"')[2].partition(b"]}")[2].partition(b"\naligned ")
        assert told == expected
        assert b"input TEXT" in told
        assert aligned == b"1"

    def test_a_place_in_the_data(self, requests):
        """The body begins anywhere, and ends with the data; its contents are aligned nevertheless."""
        plain = requests.plain()
        for at in (0, 1, 63, 100, 8191):
            assert requests.give(plain, b"x" * at + DOCUMENT + contents(TELL), at=at)
            ((_, _, response, *_),) = requests.settled()
            assert response.endswith(b"\naligned 1")
            assert contents(TELL) in response

    def test_copied(self, requests):
        """Of the data nothing is needed when the call returns."""
        data = DOCUMENT + contents(WAIT)
        count = sys.getrefcount(data)
        job = requests.give(requests.plain(), data)
        assert sys.getrefcount(data) == count
        requests.library.PlainAwaitFence()
        requests.let_go()
        assert requests.settled()[0][1] is job

    @pytest.mark.parametrize(
        ("body", "at", "length"),
        [
            (DOCUMENT + contents(ECHO)[:-1], 0, len(DOCUMENT)),
            (DOCUMENT + contents(ECHO) + b"x", 0, len(DOCUMENT)),
            (DOCUMENT[:-1] + b"?" + contents(ECHO), 0, len(DOCUMENT)),
            (b"?" + DOCUMENT[1:] + contents(ECHO), 0, len(DOCUMENT)),
            (DOCUMENT, 0, len(DOCUMENT)),
            (b"", 0, 0),
            (DOCUMENT + contents(ECHO), 1, len(DOCUMENT)),
            (DOCUMENT + contents(ECHO), 1000, len(DOCUMENT)),
            (DOCUMENT + contents(ECHO), sys.maxsize, len(DOCUMENT)),
            (DOCUMENT + contents(ECHO), -1, len(DOCUMENT)),
            (DOCUMENT + contents(ECHO), 0, len(DOCUMENT) + 1),
            (DOCUMENT + contents(ECHO), 0, sys.maxsize),
            (DOCUMENT + contents(ECHO), 0, -1),
            (DOCUMENT + contents(ECHO), 0, 0),
            (DOCUMENT.replace(b"true", b"null") + contents(ECHO), 0, len(DOCUMENT)),
            (DOCUMENT.replace(b"true", b"false") + contents(ECHO), 0, len(DOCUMENT) + 1),
        ],
    )
    def test_not_plain(self, requests, body, at, length):
        """Data that is shorter, longer, or no plain request, is not read, and its job is not kept."""
        job = Job()
        count = sys.getrefcount(job)
        assert requests.give(requests.plain(), body, job, at, length) is None
        assert sys.getrefcount(job) == count
        requests.act(requests.plain(), ECHO)
        assert len(requests.settled()) == 1

    @pytest.mark.parametrize(
        "members",
        [
            {"parameters": {"timeout": 1000}},
            {"parameters": {"own": 0.5}},
            {"parameters": {"binary_data_output": False}},
            {"outputs": [{"name": "OUT", "parameters": {"binary_data": False}}]},
            {"outputs": [{"name": "OUT", "parameters": {"classification": 1}}]},
            {"outputs": [{"name": "NONE"}]},
            {"id": 7},
            {"more": 1},
        ],
    )
    def test_what_python_must_see(self, requests, members):
        """Timeouts, of whose lack of an effect Python warns; outputs that are not binary; and what is wrong."""
        head = document(tensor("IN", "UINT8", [SIZE], SIZE), **members)
        assert requests.give(requests.plain(), head + contents(ECHO), document_length=len(head)) is None

    def test_another_shape_each(self, requests):
        """The size of a request has nothing to do with that of an earlier one."""
        plain = requests.plain()
        for size in (1, 7, 5000, 0, 16_000, 2):
            head = document(tensor("IN", "UINT8", [size], size), id=str(size))
            data = contents(ECHO, size)
            requests.give(plain, head + data, document_length=len(head))
            ((what, job, response, *_),) = requests.settled()
            assert (what, job.id) == ("encoded", str(size))
            assert response == answer(("OUT", "UINT8", [size], data), id=str(size))

    def test_the_longest(self, requests):
        """A longer body is left to Python, which reads it into shared memory."""
        for size, found in ((PLAIN_BYTES_MAX, True), (PLAIN_BYTES_MAX + 1, False)):
            head = document(tensor("IN", "UINT8", [16_000], 16_000))
            head += b" " * (size - 16_000 - len(head))
            given = requests.give(requests.plain(), head + contents(ECHO, 16_000), document_length=len(head))
            assert (given is not None) is found
            requests.settled()

    def test_rows(self, requests):
        """As many as the first dimension has, where the model has batches, and not more than it takes."""
        plain = requests.plain(inputs=[("IN", "UINT8", 1, [-1, -1], True)], rows_max=4)
        for shape, rows in (([4, 2], 4), ([1, 8], 1), ([8, 1], None)):
            head = document(tensor("IN", "UINT8", shape, SIZE))
            job = requests.give(plain, head + contents(ECHO), document_length=len(head))
            assert (job and job.rows) == rows
            requests.settled()

    def test_of_another_model(self, requests, make):
        """What reads the requests to one model reads none of another."""
        other = make()
        assert other.give(requests.plain(), DOCUMENT + contents(ECHO)) is None

    def test_an_instance_that_is_not_initialized(self, requests):
        """It takes none, neither before nor after."""
        plain = requests.plain()
        fresh = _triton.Instance(requests.model, None, "fresh", 2, 0, False, [], [], "{}")
        job = Job()
        count = sys.getrefcount(job)
        for step in (lambda: None, lambda: (fresh.initialize(), fresh.finalize())):
            step()
            assert fresh.execute_plain(plain, job, DOCUMENT + contents(ECHO), 0, len(DOCUMENT), 1, None) is None
        assert sys.getrefcount(job) == count

    @pytest.mark.parametrize(
        "arguments",
        [
            ("plain", Job(), b"", 0, 0, 1, None),
            (None, Job(), b"", 0, 0, 1, None),
            (..., Job(), "text", 0, 0, 1, None),
            (..., Job(), memoryview(b""), 0, 0, 1, None),
            (..., Job(), b"", "at", 0, 1, None),
            (..., Job(), b"", 0, "length", 1, None),
            (..., Job(), b"", 0, 0, 1),
        ],
    )
    def test_wrong_arguments(self, requests, arguments):
        """Arguments of a wrong type are refused."""
        plain = requests.plain()
        with pytest.raises(TypeError):
            requests.instance.execute_plain(*[plain if each is ... else each for each in arguments])

    @pytest.mark.parametrize(
        "arguments",
        [
            (5, [], 0),
            ([], 5, 0),
            ([5], [], 0),
            ([], [5], 0),
            ([("IN",)], [], 0),
            ([("IN", "UINT8", 1, [-1])], [], 0),
            ([("IN", 5, 1, [-1], True)], [], 0),
            ([("IN", "UINT8", 1, -1, True)], [], 0),
            ([("IN", "UINT8", 1, [1] * 33, True)], [], 0),
            ([("IN", "UINT8", 1, [1], True)] * 65, [], 0),
            ([], [("OUT", "UINT8")], 0),
            ([], [("OUT", "UINT8", ["x"])], 0),
            ([], [], "rows"),
        ],
    )
    def test_what_no_model_declares(self, requests, arguments):
        """A declaration that makes no sense, or is too large, is refused."""
        with pytest.raises((TypeError, ValueError)):
            _triton.PlainRequests(requests.model, *arguments)

    def test_cancel(self, requests):
        """It is found by its number."""
        job = requests.act(requests.plain(), UNTIL_CANCELLED)
        requests.instance.cancel(requests.serial)
        ((what, found, *_),) = requests.settled()
        assert (what, found) == ("encoded", job)


class TestWords:
    """Responses that native code writes, as Python would."""

    @pytest.mark.parametrize(
        ("action", "outputs"),
        [
            (ECHO, [("OUT", "UINT8", [SIZE], contents(ECHO))]),
            (OTHER_NAME, [("OUT2", "UINT8", [SIZE], contents(OTHER_NAME))]),
            (SHORTER, [("OUT", "UINT8", [SIZE - 1], contents(SHORTER)[:-1])]),
            (TWO_OUTPUTS, [(name, "UINT8", [SIZE], contents(TWO_OUTPUTS)) for name in ("OUT", "OUT2")]),
            (NO_OUTPUT, []),
        ],
    )
    @pytest.mark.parametrize("id", ["", "a 1"])
    def test_encoded(self, requests, action, outputs, id):
        """The bytes are those of the encoder in Python, for any outputs."""
        head = document(tensor("IN", "UINT8", [SIZE], SIZE), **({"id": id} if id else {}))
        job = requests.give(requests.plain(), head + contents(action), document_length=len(head))
        ((what, found, response, times, execution),) = requests.settled()
        assert (what, found, response, times) == ("encoded", job, answer(*outputs, id=id), TIMES)
        assert (execution[0], execution[3]) == (job.serial, REPORTED)

    @pytest.mark.parametrize(
        ("action", "outputs", "parameters"),
        [
            (OTHER_DATATYPE, [("OUT", "INT8", [SIZE], contents(OTHER_DATATYPE))], None),
            (OTHER_SHAPE, [("OUT", "UINT8", [1, SIZE], contents(OTHER_SHAPE))], None),
            (PARAMETER, [("OUT", "UINT8", [SIZE], contents(PARAMETER))], {"number": 5}),
        ],
    )
    def test_others(self, requests, action, outputs, parameters):
        """A response with parameters, or with outputs that are not as declared, comes as it is."""
        plain = requests.plain()
        requests.act(plain, action)
        ((what, _, failure, found, *rest),) = requests.settled()
        assert (what, failure, described(found), rest[0], rest[1]) == ("answered", None, outputs, parameters, TIMES)
        requests.act(plain, ECHO)
        ((what, *_),) = requests.settled()
        assert what == "encoded"

    @pytest.mark.parametrize(
        "declared",
        [
            [("OUT2", "UINT8", [-1])],
            [("OUT", "INT8", [-1])],
            [("OUT", "UINT8", [SIZE + 1])],
            [("OUT", "UINT8", [-1, -1])],
            [("OUT", "UINT8", [])],
            [],
        ],
    )
    def test_not_as_declared(self, requests, declared):
        """Python, which tells the author, writes such a response."""
        requests.act(requests.plain(outputs=declared), ECHO)
        ((what, _, _, found, *_),) = requests.settled()
        assert (what, described(found)) == ("answered", ECHOED)

    @pytest.mark.parametrize("dim", [SIZE, -1])
    def test_as_declared(self, requests, dim):
        """A dimension is the declared one, or any."""
        requests.act(requests.plain(outputs=[("OUT", "UINT8", [dim])]), ECHO)
        assert requests.settled()[0][0] == "encoded"

    def test_the_reader_is_gone(self, requests):
        """It is kept by those that need it."""
        plain = requests.plain()
        job = requests.hold(plain)
        del plain
        gc.collect()
        requests.let_go()
        ((what, found, response, *_),) = requests.settled()
        assert (what, found, response) == ("encoded", job, HEAD + contents(WAIT))


class TestSent:
    """Responses that the thread that makes them sends the client itself."""

    @pytest.fixture
    def ends(self):
        """A connection: the server's end, and the client's, which does not wait."""
        ends = socket.socketpair()
        for each in ends:
            each.setblocking(False)
        yield ends
        for each in ends:
            each.close()

    def give(self, requests, plain, client, action=ECHO):
        job = Job()
        requests.serial += 1
        job.serial = requests.serial
        body = DOCUMENT + contents(action)
        job.rows, job.id = requests.instance.execute_plain(plain, job, body, 0, len(DOCUMENT), job.serial, client)
        requests.instance.wake()
        return job

    def test_sent(self, requests, ends):
        """The client has it, and one event says all the rest."""
        client = _triton.ClientSocket(ends[0].fileno())
        plain = requests.plain()
        for _ in range(3):
            job = self.give(requests, plain, client)
            ((what, found, rest, sent_ns, released, times, execution),) = requests.settled()
            assert (what, found, rest, released, times) == ("sent", job, None, True, TIMES)
            assert execution[1] <= sent_ns <= execution[2]
            assert ends[1].recv(1000) == HEAD + contents(ECHO)

    @pytest.mark.parametrize("action", [PARAMETER, OTHER_SHAPE, ERROR_RESPONSE, EXECUTE_FAILS])
    def test_others(self, requests, ends, action):
        """A response that is not plain is left to Python."""
        client = _triton.ClientSocket(ends[0].fileno())
        self.give(requests, requests.plain(), client, action)
        assert [event[0] for event in requests.settled()] == ["answered"]
        with pytest.raises(BlockingIOError):
            ends[1].recv(1)

    def test_no_room(self, requests, ends):
        """Python gets the rest of a response that the client does not take."""
        client = _triton.ClientSocket(ends[0].fileno())
        filled = 0
        for piece in (b"x" * 65536, b"x" * SIZE, b"x"):
            with suppress(BlockingIOError):
                while True:
                    filled += ends[0].send(piece)
        job = self.give(requests, requests.plain(), client)
        ((what, found, left, *_),) = requests.settled()
        assert (what in ("encoded", "sent"), found) == (True, job)
        got = b""
        with suppress(BlockingIOError):
            while True:
                got += ends[1].recv(1 << 20)
        assert left
        assert got[filled:] + left == HEAD + contents(ECHO)

    def test_a_client_that_is_gone(self, requests, ends):
        """A response to a client that is gone counts as sent, so that Python does not try again."""
        client = _triton.ClientSocket(ends[0].fileno())
        plain = requests.plain()
        ends[1].close()
        self.give(requests, plain, client)
        ((what, _, rest, *_),) = requests.settled()
        assert (what, rest) == ("sent", None)

    def test_shut_down(self, requests, ends):
        """The client sees the end though our duplicate of the descriptor stays open; nothing is sent afterwards."""
        client = _triton.ClientSocket(ends[0].fileno())
        ends[0].close()
        with pytest.raises(BlockingIOError):
            ends[1].recv(1)
        client.shut_down()
        assert ends[1].recv(1) == b""
        self.give(requests, requests.plain(), client)
        ((what, _, rest, *_),) = requests.settled()
        assert (what, rest) == ("sent", None)

    def test_claimed(self, requests, ends):
        """A response that Python has claimed is not sent by native code; one that was sent cannot be claimed."""
        client = _triton.ClientSocket(ends[0].fileno())
        plain = requests.plain()
        requests.hold(plain)
        claimed = self.give(requests, plain, client)
        assert requests.instance.claim(claimed.serial)
        requests.let_go()
        held, (what, job, response, *_) = requests.settled()
        assert held[0] == "encoded"
        assert (what, job, response) == ("encoded", claimed, HEAD + contents(ECHO))
        with pytest.raises(BlockingIOError):
            ends[1].recv(1)
        sent = self.give(requests, plain, client, WAIT)
        requests.library.PlainAwaitFence()
        assert not requests.instance.claim(sent.serial)
        requests.let_go()
        assert requests.settled()[0][0] == "sent"

    def test_no_descriptor(self):
        """There is no connection."""
        with pytest.raises(OSError, match="Bad file descriptor"):
            _triton.ClientSocket(1 << 20)


class TestOnce:
    """Each event comes once, combined with others or alone, for any order of the backend's actions."""

    def names(self, requests):
        return [event[0] for event in requests.settled()]

    @pytest.mark.parametrize(
        ("action", "failure", "times", "reported"),
        [
            (NO_STATISTICS, None, None, REPORTED),
            (FAILED_STATISTICS, None, (False, 1, 2, 3, 4), REPORTED),
            (ERROR_RESPONSE, (int(Code.INVALID_ARG), "as the request says"), (False, 1, 2, 3, 4), REPORTED),
            (EXECUTE_FAILS, (int(Code.INVALID_ARG), "Execute fails"), None, False),
        ],
    )
    def test_not_encoded(self, requests, action, failure, times, reported):
        """Failures, and responses with other statistics, come as usual, in one event."""
        plain = requests.plain()
        job = requests.act(plain, action)
        ((what, found, *rest, execution),) = requests.settled()
        assert (what, found, rest[0], rest[3], execution[3]) == ("answered", job, failure, times, reported)
        if failure is None:
            assert described(rest[1]) == [("OUT", "UINT8", [SIZE], contents(action))]

    def test_an_exception(self, requests):
        """It is a failure."""
        requests.act(requests.plain(), THROW)
        ((what, _, failure, *_),) = requests.settled()
        assert (what, failure[0]) == ("answered", int(Code.INTERNAL))

    def test_another_thread(self, requests):
        """The thread that responds makes no difference."""
        plain = requests.plain()
        requests.act(plain, OTHER_THREAD)
        ((what, _, response, _, execution),) = requests.settled()
        assert (what, response) == ("encoded", HEAD + contents(OTHER_THREAD))
        assert execution is not None

    def test_taken_while_it_executes(self, requests):
        """An event that Python has taken is not changed: the end of Execute becomes an event of its own."""
        plain = requests.plain()
        job = requests.hold(plain)
        requests.take()
        assert requests.events == [("encoded", job, HEAD + contents(WAIT), TIMES, None)]
        requests.events.clear()
        requests.let_go()
        ((what, owner, (serial, *_, reported)),) = requests.settled()
        assert (what, owner, serial, reported) == ("executed", requests.native, job.serial, REPORTED)

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_released_later(self, requests, is_taken):
        """The response waits for its release as long as Python does not take it."""
        plain = requests.plain()
        job = requests.act(plain, RELEASE_LATER)
        if is_taken:
            assert self.names(requests) == ["response", "executed"]
        requests.act(plain, GO)
        events = requests.settled()
        if is_taken:
            assert [event[0] for event in events] == ["released", "encoded"]
            assert events[0][1] is job
        else:
            assert [event[0] for event in events] == ["encoded", "executed", "encoded"]
            assert events[0][1:] == (job, HEAD + contents(RELEASE_LATER), TIMES, None)
            assert events[1][2][0] == job.serial

    def test_all_later(self, requests):
        """Execute returns first."""
        plain = requests.plain()
        job = requests.act(plain, ALL_LATER)
        assert self.names(requests) == ["executed"]
        requests.act(plain, GO)
        first, second = requests.settled()
        assert first == ("encoded", job, HEAD + contents(ALL_LATER), TIMES, None)
        assert second[0] == "encoded"
        assert second[4] is not None

    def test_answered_later(self, requests):
        """A request may be released before it is answered."""
        plain = requests.plain()
        job = requests.act(plain, RESPOND_LATER)
        assert self.names(requests) == ["released", "executed"]
        requests.act(plain, GO)
        first, second = requests.settled()
        assert (first[0], first[1], first[2]) == ("response", job, True)
        assert described(first[4]) == [("OUT", "UINT8", [SIZE], contents(RESPOND_LATER))]
        assert second[0] == "encoded"

    def test_reports_between(self, requests):
        """The end of Execute does not overtake a report after the answer: it becomes an event of its own."""
        plain = requests.plain()
        requests.act(plain, TWO_REPORTS)
        encoded, batch, executed = requests.settled()
        assert (encoded[0], encoded[4]) == ("encoded", None)
        assert batch == ("batch", requests.native, REPORTED)
        assert executed[2][3] == REPORTED

    def test_lost(self, requests):
        """A request that its backend forgets fails."""
        plain = requests.plain()
        job = requests.act(plain, LOST)
        events = requests.settled()
        assert sorted(event[0] for event in events) == ["executed", "released", "response"]
        (response,) = [event for event in events if event[0] == "response"]
        assert response[1] is job
        assert "sent no final response" in response[3][1]

    def test_many_at_a_time(self, requests):
        """Each request has its own answer, in order, whoever writes it, and ends once."""
        plain, count = requests.plain(), 600
        jobs = [requests.act(plain, PARAMETER if number % 3 == 1 else ECHO) for number in range(count)]
        events = requests.settled()
        answers = [event for event in events if event[0] != "executed"]
        assert [event[1] for event in answers] == jobs
        assert [event[0] for event in answers] == ["encoded", "answered", "encoded"] * (count // 3)
        executed = [event[2][0] for event in events if event[0] == "executed"]
        executed += [event[-1][0] for event in answers if event[-1] is not None]
        assert sorted(executed) == [*range(1, count + 1)]

    def test_many_instances(self, requests):
        """One reader serves all instances of a model at a time, while Python takes the events."""
        plain = requests.plain()
        instances = [
            _triton.Instance(requests.model, number, f"model_{number}", 2, 0, False, [], [], "{}")
            for number in range(3)
        ]
        count = 300
        jobs = {(number, serial): Job() for number in range(3) for serial in range(1, count + 1)}

        def give(number):
            for serial in range(1, count + 1):
                body = DOCUMENT + contents(ECHO)[:-4] + serial.to_bytes(4)
                assert instances[number].execute_plain(
                    plain, jobs[number, serial], body, 0, len(DOCUMENT), serial, None
                )
                instances[number].wake()

        for instance in instances:
            instance.initialize()
        threads = [threading.Thread(target=give, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        events = requests.executed(len(jobs))
        for thread in threads:
            thread.join()
        for instance in instances:
            instance.finalize()
        kinds = {id(job): [] for job in jobs.values()}
        found = {}
        for what, subject, *rest in events:
            if what == "executed":
                kinds[id(jobs[subject, rest[0][0]])].append(what)
                continue
            kinds[id(subject)] += [what, "executed"] if what == "encoded" and rest[-1] is not None else [what]
            if what != "released":
                found[id(subject)] = rest[0] if what == "encoded" else bytes(rest[2][0][3])
        # However far the backend had got when Python looked.
        assert {tuple(each) for each in kinds.values()} <= {
            ("encoded", "executed"),
            ("response", "released", "executed"),
        }
        for (_, serial), job in jobs.items():
            assert found[id(job)].endswith(serial.to_bytes(4))

    def test_finalize(self, requests):
        """Finalize waits for earlier requests, whose events are complete then."""
        plain = requests.plain()
        instance = _triton.Instance(requests.model, "me", "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        for serial in range(1, 51):
            assert instance.execute_plain(plain, Job(), DOCUMENT + contents(ECHO), 0, len(DOCUMENT), serial, None)
        instance.finalize()
        requests.take()
        assert len(requests._executed()) == 50

    @pytest.mark.parametrize(
        "actions",
        [
            *[
                [action]
                for action in (ECHO, NO_STATISTICS, ERROR_RESPONSE, EXECUTE_FAILS, PARAMETER, TWO_REPORTS, THROW)
            ],
            [RELEASE_LATER, GO],
            [ALL_LATER, GO],
            [RESPOND_LATER, GO],
            [LOST, ECHO],
        ],
    )
    def test_jobs_are_given_back(self, requests, actions):
        """Jobs and plain requests are released with their last event at the latest."""
        plain = requests.plain()
        for _ in range(20):
            seen = [weakref.ref(requests.act(plain, action)) for action in actions]
            requests.settled()
            assert [each() for each in seen] == [None] * len(actions)


class TestIdentity:
    """The usual backend."""

    def run(self, made, plain, head, contents):
        """The one event of a request, all of which is over before it is taken."""
        instance = _triton.Instance(made.model, None, "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        assert instance.execute_plain(plain, Job(), head + contents, 0, len(head), 1, None)
        instance.finalize()
        made.take()
        (event,) = made.events
        made.events = []
        return event

    def test_parameters(self, make):
        """A request's parameters reach the backend, and responses that have any are not encoded."""
        made = make("identity.cc", ["OUTPUT0"])
        plain = made.plain(inputs=[("INPUT0", "INT32", 4, [-1], True)], outputs=[("OUTPUT0", "INT32", [-1])])
        for parameters in ({}, {"a": 1, "b": "x"}):
            head = document(tensor("INPUT0", "INT32", [2], 8), parameters=parameters)
            what, _, *rest = self.run(made, plain, head, b"abcdefgh")
            assert what == ("answered" if parameters else "encoded")
            expected = parameters or answer(("OUTPUT0", "INT32", [2], b"abcdefgh"))
            assert (rest[2] if parameters else rest[0]) == expected

    @pytest.mark.parametrize("outputs", [None, ["OUTPUT0"], ["OUTPUT1"]])
    def test_outputs_that_are_asked_for(self, make, outputs):
        """Only these are made."""
        made = make("identity.cc", ["OUTPUT0", "OUTPUT1"])
        plain = made.plain(
            inputs=[("INPUT0", "INT32", 4, [-1], True), ("INPUT1", "FP16", 2, [-1, 2], True)],
            outputs=[("OUTPUT0", "INT32", [-1]), ("OUTPUT1", "FP16", [-1, 2])],
        )
        members = {} if outputs is None else {"outputs": [{"name": name} for name in outputs]}
        head = document(tensor("INPUT0", "INT32", [1], 4), tensor("INPUT1", "FP16", [0, 2], 0), **members)
        every = {"OUTPUT0": ("OUTPUT0", "INT32", [1], b"abcd"), "OUTPUT1": ("OUTPUT1", "FP16", [0, 2], b"")}
        what, _, response, *_ = self.run(made, plain, head, b"abcd")
        assert (what, response) == ("encoded", answer(*[every[name] for name in outputs or every]))
