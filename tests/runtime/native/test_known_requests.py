# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that native code finds in bodies because they are known, and responses that it encodes.

The first byte of a request's contents is the action of tests/native/known.cc.
"""

import ctypes
import gc
import socket
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from pyruntime.runtime.native import _triton
from pyruntime.utils.errors import Code

from .known import (
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
    contents,
    plain,
    wire,
)

ECHOED = [("OUT", "UINT8", [SIZE], contents(ECHO))]


class TestFound:
    """The bodies that are found, and the requests that the backend gets."""

    def test_one_event(self, requests):
        """A backend that is done when Execute returns causes one event, which says all of it."""
        job = requests.act(requests.known(), ECHO)
        ((what, found, failure, outputs, parameters, times, execution),) = requests.settled()
        assert (what, found, failure, plain(outputs), parameters, times) == ("answered", job, None, ECHOED, None, TIMES)
        serial, start_ns, end_ns, reported = execution
        assert (serial, reported) == (job.serial, REPORTED)
        assert 0 < start_ns <= end_ns

    @pytest.mark.parametrize(
        "fields",
        [
            {},
            {"correlation": 7, "flags": 3, "timeout": 1000},
            {"correlation": "text", "outputs": ["OUT"]},
            {"parameters": {"a": 1, "b": "x\0y", "c": True, "d": 0.5, "e": ""}, "outputs": ["OUT2", "OUT"]},
            {"timeout": 2**64 - 1, "flags": 2**32 - 1, "correlation": 2**64 - 1},
        ],
    )
    def test_told_the_same(self, requests, fields):
        """The backend sees a known request as any other request with the same contents."""
        usual = {"correlation": 0, "flags": 0, "timeout": 0, "outputs": None, "parameters": ""} | fields
        parts = [contents(TELL), b"", b"abcdefgh", b"\0\xff"]
        shapes = ([SIZE], [0, 3], [2, 1], [2, 1, 1])
        names = ("IN", "EMPTY", "FP", "BYTES")
        kinds = ("UINT8", "INT64", "FP32", "INT8")
        body = b"".join(parts)
        memory = ctypes.create_string_buffer(body, len(body))
        tensors, at = [], 0
        for name, kind, shape, part in zip(names, kinds, shapes, parts, strict=True):
            tensors.append((name, kind, shape, at, len(part), 0, 0))
            at += len(part)
        request = ["", *usual.values(), tensors, "", None]
        requests.instance.execute([Job()], [request], 1000, ctypes.addressof(memory))
        known = _triton.KnownRequest(requests.model, DOCUMENT, len(DOCUMENT) + len(body), request)
        told = []
        for give in (lambda: None, lambda: requests.give(known, DOCUMENT + body)):
            give()
            (event, *_) = requests.settled()
            told.append(bytes(event[3][0][3]).decode(errors="replace").partition("\naligned "))
        assert told[0][0] == told[1][0]
        assert "input BYTES" in told[0][0]
        assert told[1][2] == "1"

    def test_a_place_in_the_data(self, requests):
        """The body begins anywhere, and ends with the data; its contents are aligned nevertheless."""
        known = requests.known()
        for at in (0, 1, 63, 100, 8191):
            assert requests.give(known, b"x" * at + DOCUMENT + contents(TELL), at=at)
            ((*_, outputs, _, _, _),) = requests.settled()
            assert bytes(outputs[0][3]).endswith(b"\naligned 1")
            assert contents(TELL) in bytes(outputs[0][3])

    def test_copied(self, requests):
        """Of the data nothing is needed when the call returns."""
        data = DOCUMENT + contents(WAIT)
        count = sys.getrefcount(data)
        job = requests.give(requests.known(), data)
        assert sys.getrefcount(data) == count
        requests.library.KnownAwaitFence()
        requests.let_go()
        assert requests.settled()[0][1] is job

    @pytest.mark.parametrize(
        ("body", "at"),
        [
            (DOCUMENT + contents(ECHO)[:-1], 0),
            (DOCUMENT + contents(ECHO) + b"x", 0),
            (DOCUMENT[:-1] + b"?" + contents(ECHO), 0),
            (b"?" + DOCUMENT[1:] + contents(ECHO), 0),
            (DOCUMENT, 0),
            (b"", 0),
            (DOCUMENT + contents(ECHO), 1),
            (DOCUMENT + contents(ECHO), 1000),
            (DOCUMENT + contents(ECHO), sys.maxsize),
            (DOCUMENT + contents(ECHO), -1),
            (DOCUMENT + contents(ECHO), -len(DOCUMENT)),
        ],
    )
    def test_unknown(self, requests, body, at):
        """Data that is shorter, longer, or begins otherwise is not found, and its job is not kept."""
        job = Job()
        count = sys.getrefcount(job)
        assert requests.give(requests.known(), body, job, at) is None
        assert sys.getrefcount(job) == count
        requests.act(requests.known(), ECHO)
        assert len(requests.settled()) == 1

    def test_no_contents(self, requests):
        """A body may be all document."""
        known = requests.known(size=0)
        job = requests.give(known, DOCUMENT)
        ((_, found, _, outputs, *_),) = requests.settled()
        assert found is job
        assert plain(outputs) == [("OUT", "UINT8", [0], b"")]
        known.remember(HEAD, [("OUT", "UINT8", [0], 0)])
        requests.give(known, DOCUMENT)
        ((_, _, response, *_),) = requests.settled()
        assert response == HEAD

    def test_of_another_model(self, requests, make):
        """A request that is known for one model is not known for another."""
        other = make()
        assert other.give(requests.known(), DOCUMENT + contents(ECHO)) is None

    def test_an_instance_that_is_not_initialized(self, requests):
        """It takes none, neither before nor after."""
        known = requests.known()
        fresh = _triton.Instance(requests.model, None, "fresh", 2, 0, False, [], [], "{}")
        job = Job()
        count = sys.getrefcount(job)
        for step in (lambda: None, lambda: (fresh.initialize(), fresh.finalize())):
            step()
            assert not fresh.execute_known(known, job, DOCUMENT + contents(ECHO), 0, 1, None)
        assert sys.getrefcount(job) == count

    @pytest.mark.parametrize(
        "arguments",
        [
            ("known", Job(), b"", 0, 1, None),
            (None, Job(), b"", 0, 1, None),
            (..., Job(), "text", 0, 1, None),
            (..., Job(), memoryview(b""), 0, 1, None),
            (..., Job(), b"", "at", 1, None),
            (..., Job(), b"", 0, 1),
        ],
    )
    def test_wrong_arguments(self, requests, arguments):
        """Arguments of a wrong type are refused."""
        known = requests.known()
        with pytest.raises(TypeError):
            requests.instance.execute_known(*[known if each is ... else each for each in arguments])

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ((DOCUMENT, len(DOCUMENT) - 1, wire(0)), ValueError),
            ((DOCUMENT, -1, wire(0)), ValueError),
            (("text", 100, wire()), TypeError),
            ((DOCUMENT, "size", wire()), TypeError),
            ((DOCUMENT, 100, []), IndexError),
            ((DOCUMENT, 100, wire()[:-1]), IndexError),
            ((DOCUMENT, 100, wire(timeout=-1)), OverflowError),
            ((DOCUMENT, 100, wire(timeout=2**64)), OverflowError),
        ],
    )
    def test_what_cannot_be_known(self, requests, arguments, error):
        """A pattern that makes no sense is refused."""
        with pytest.raises((error, TypeError, ValueError)):
            _triton.KnownRequest(requests.model, *arguments)

    def test_cancel(self, requests):
        """It is found by its number."""
        job = requests.act(requests.known(), UNTIL_CANCELLED)
        requests.instance.cancel(requests.serial)
        ((what, found, *_),) = requests.settled()
        assert (what, found) == ("answered", job)


class TestRemembered:
    """Responses that are put into words."""

    def test_encoded(self, requests):
        """The remembered head and the contents, in one event."""
        known = requests.remember(requests.known())
        for _ in range(3):
            job = requests.act(known, ECHO)
            ((what, found, response, times, execution),) = requests.settled()
            assert (what, found, response, times) == ("encoded", job, HEAD + contents(ECHO), TIMES)
            assert (execution[0], execution[3]) == (job.serial, REPORTED)

    @pytest.mark.parametrize(
        ("action", "outputs", "parameters"),
        [
            (OTHER_NAME, [("OUT2", "UINT8", [SIZE], contents(OTHER_NAME))], None),
            (OTHER_DATATYPE, [("OUT", "INT8", [SIZE], contents(OTHER_DATATYPE))], None),
            (OTHER_SHAPE, [("OUT", "UINT8", [1, SIZE], contents(OTHER_SHAPE))], None),
            (SHORTER, [("OUT", "UINT8", [SIZE - 1], contents(SHORTER)[:-1])], None),
            (PARAMETER, [("OUT", "UINT8", [SIZE], contents(PARAMETER))], {"number": 5}),
            (TWO_OUTPUTS, [(name, "UINT8", [SIZE], contents(TWO_OUTPUTS)) for name in ("OUT", "OUT2")], None),
            (NO_OUTPUT, [], None),
        ],
    )
    def test_others(self, requests, action, outputs, parameters):
        """A response that differs in more than contents comes as it is; the next one that does not is encoded."""
        known = requests.remember(requests.known())
        requests.act(known, action)
        ((what, _, failure, found, *rest),) = requests.settled()
        assert (what, failure, plain(found), rest[0], rest[1]) == ("answered", None, outputs, parameters, TIMES)
        requests.act(known, ECHO)
        ((what, *_),) = requests.settled()
        assert what == "encoded"

    @pytest.mark.parametrize(
        "outputs",
        [
            [("OUT2", "UINT8", [SIZE], SIZE)],
            [("OUT", "INT8", [SIZE], SIZE)],
            [("OUT", "BYTES", [SIZE], SIZE)],
            [("OUT", "UINT8", [1, SIZE], SIZE)],
            [("OUT", "UINT8", [], SIZE)],
            [("OUT", "UINT8", [SIZE], SIZE + 1)],
            [("OUT", "UINT8", [SIZE], 0)],
            [("OUT", "UINT8", [SIZE], SIZE)] * 2,
            [],
        ],
    )
    def test_nothing_like_it(self, requests, outputs):
        """A remembered head is used only if all outputs are like the remembered ones."""
        known = requests.known()
        known.remember(HEAD, outputs)
        requests.act(known, ECHO)
        ((what, _, _, found, *_),) = requests.settled()
        assert (what, plain(found)) == ("answered", ECHOED)

    def test_several_outputs(self, requests):
        """Their contents in the order in which the backend has made them; the order counts, too."""
        known = requests.known()
        tensors = [("OUT", "UINT8", [SIZE], SIZE), ("OUT2", "UINT8", [SIZE], SIZE)]
        known.remember(HEAD, tensors)
        requests.act(known, TWO_OUTPUTS)
        ((what, _, response, *_),) = requests.settled()
        assert (what, response) == ("encoded", HEAD + contents(TWO_OUTPUTS) * 2)
        known.remember(HEAD, tensors[::-1])
        requests.act(known, TWO_OUTPUTS)
        assert requests.settled()[0][0] == "answered"

    def test_no_output(self, requests):
        """A response may be nothing but a head."""
        known = requests.known()
        known.remember(HEAD, ())
        requests.act(known, NO_OUTPUT)
        ((what, _, response, *_),) = requests.settled()
        assert (what, response) == ("encoded", HEAD)

    def test_another_one(self, requests):
        """The latest response is remembered; a request under way uses the one from its beginning."""
        known = requests.remember(requests.known())
        requests.hold(known)
        known.remember(b"other", [("OUT", "UINT8", [SIZE], SIZE)])
        requests.let_go()
        ((what, _, response, *_),) = requests.settled()
        assert (what, response) == ("encoded", HEAD + contents(WAIT))
        requests.act(known, ECHO)
        ((what, _, response, *_),) = requests.settled()
        assert (what, response) == ("encoded", b"other" + contents(ECHO))

    @pytest.mark.parametrize("outputs", [None, 5, [5], [("OUT",)], [["OUT", "UINT8", [1], 1]], [("OUT", 5, [1], 1)]])
    def test_no_outputs_at_all(self, requests, outputs):
        """A remembered response is kept if its replacement is invalid."""
        known = requests.remember(requests.known())
        with pytest.raises((TypeError, ValueError)):
            known.remember(b"other", outputs)
        requests.act(known, ECHO)
        assert requests.settled()[0][2] == HEAD + contents(ECHO)

    def test_nobody_else_knows_it(self, requests):
        """It is kept by those that need it."""
        known = requests.remember(requests.known())
        job = requests.hold(known)
        del known
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

    def give(self, requests, known, client, action=ECHO):
        job = Job()
        requests.serial += 1
        job.serial = requests.serial
        body = DOCUMENT + contents(action)
        assert requests.instance.execute_known(known, job, body, 0, job.serial, client)
        requests.instance.wake()
        return job

    def test_sent(self, requests, ends):
        """The client has it, and one event says all the rest."""
        client = _triton.ClientSocket(ends[0].fileno())
        known = requests.remember(requests.known())
        for _ in range(3):
            job = self.give(requests, known, client)
            ((what, found, rest, sent_ns, released, times, execution),) = requests.settled()
            assert (what, found, rest, released, times) == ("sent", job, None, True, TIMES)
            assert execution[1] <= sent_ns <= execution[2]
            assert ends[1].recv(1000) == HEAD + contents(ECHO)

    @pytest.mark.parametrize("action", [PARAMETER, OTHER_NAME, ERROR_RESPONSE, EXECUTE_FAILS, NO_OUTPUT])
    def test_others(self, requests, ends, action):
        """A response that is unlike the remembered one is left to Python."""
        client = _triton.ClientSocket(ends[0].fileno())
        self.give(requests, requests.remember(requests.known()), client, action)
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
        job = self.give(requests, requests.remember(requests.known()), client)
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
        known = requests.remember(requests.known())
        ends[1].close()
        self.give(requests, known, client)
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
        self.give(requests, requests.remember(requests.known()), client)
        ((what, _, rest, *_),) = requests.settled()
        assert (what, rest) == ("sent", None)

    def test_claimed(self, requests, ends):
        """A response that Python has claimed is not sent by native code; one that was sent cannot be claimed."""
        client = _triton.ClientSocket(ends[0].fileno())
        known = requests.remember(requests.known())
        requests.hold(known)
        claimed = self.give(requests, known, client)
        assert requests.instance.claim(claimed.serial)
        requests.let_go()
        held, (what, job, response, *_) = requests.settled()
        assert held[0] == "encoded"
        assert (what, job, response) == ("encoded", claimed, HEAD + contents(ECHO))
        with pytest.raises(BlockingIOError):
            ends[1].recv(1)
        sent = self.give(requests, known, client, WAIT)
        requests.library.KnownAwaitFence()
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

    @pytest.mark.parametrize("is_remembered", [False, True])
    @pytest.mark.parametrize(
        ("action", "failure", "times", "reported"),
        [
            (NO_STATISTICS, None, None, REPORTED),
            (FAILED_STATISTICS, None, (False, 1, 2, 3, 4), REPORTED),
            (ERROR_RESPONSE, (int(Code.INVALID_ARG), "as the request says"), (False, 1, 2, 3, 4), REPORTED),
            (EXECUTE_FAILS, (int(Code.INVALID_ARG), "Execute fails"), None, False),
        ],
    )
    def test_not_encoded(self, requests, action, failure, times, reported, is_remembered):
        """Failures, and responses with other statistics, come as usual, in one event."""
        known = requests.remember(requests.known()) if is_remembered else requests.known()
        job = requests.act(known, action)
        ((what, found, *rest, execution),) = requests.settled()
        assert (what, found, rest[0], rest[3], execution[3]) == ("answered", job, failure, times, reported)
        if failure is None:
            assert plain(rest[1]) == [("OUT", "UINT8", [SIZE], contents(action))]

    def test_an_exception(self, requests):
        """It is a failure."""
        requests.act(requests.remember(requests.known()), THROW)
        ((what, _, failure, *_),) = requests.settled()
        assert (what, failure[0]) == ("answered", int(Code.INTERNAL))

    def test_another_thread(self, requests):
        """The thread that responds makes no difference."""
        known = requests.remember(requests.known())
        requests.act(known, OTHER_THREAD)
        ((what, _, response, _, execution),) = requests.settled()
        assert (what, response) == ("encoded", HEAD + contents(OTHER_THREAD))
        assert execution is not None

    def test_taken_while_it_executes(self, requests):
        """An event that Python has taken is not changed: the end of Execute becomes an event of its own."""
        known = requests.remember(requests.known())
        job = requests.hold(known)
        requests.take()
        assert requests.events == [("encoded", job, HEAD + contents(WAIT), TIMES, None)]
        requests.events.clear()
        requests.let_go()
        ((what, owner, (serial, *_, reported)),) = requests.settled()
        assert (what, owner, serial, reported) == ("executed", requests.native, job.serial, REPORTED)

    @pytest.mark.parametrize("is_taken", [False, True])
    def test_released_later(self, requests, is_taken):
        """The response waits for its release as long as Python does not take it."""
        known = requests.remember(requests.known())
        job = requests.act(known, RELEASE_LATER)
        if is_taken:
            assert self.names(requests) == ["response", "executed"]
        requests.act(known, GO)
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
        known = requests.remember(requests.known())
        job = requests.act(known, ALL_LATER)
        assert self.names(requests) == ["executed"]
        requests.act(known, GO)
        first, second = requests.settled()
        assert first == ("encoded", job, HEAD + contents(ALL_LATER), TIMES, None)
        assert second[0] == "encoded"
        assert second[4] is not None

    def test_answered_later(self, requests):
        """A request may be released before it is answered."""
        known = requests.remember(requests.known())
        job = requests.act(known, RESPOND_LATER)
        assert self.names(requests) == ["released", "executed"]
        requests.act(known, GO)
        first, second = requests.settled()
        assert (first[0], first[1], first[2]) == ("response", job, True)
        assert plain(first[4]) == [("OUT", "UINT8", [SIZE], contents(RESPOND_LATER))]
        assert second[0] == "encoded"

    def test_reports_between(self, requests):
        """The end of Execute does not overtake a report after the answer: it becomes an event of its own."""
        known = requests.remember(requests.known())
        requests.act(known, TWO_REPORTS)
        encoded, batch, executed = requests.settled()
        assert (encoded[0], encoded[4]) == ("encoded", None)
        assert batch == ("batch", requests.native, REPORTED)
        assert executed[2][3] == REPORTED

    def test_lost(self, requests):
        """A request that its backend forgets fails."""
        known = requests.remember(requests.known())
        job = requests.act(known, LOST)
        events = requests.settled()
        assert sorted(event[0] for event in events) == ["executed", "released", "response"]
        (response,) = [event for event in events if event[0] == "response"]
        assert response[1] is job
        assert "sent no final response" in response[3][1]

    def test_many_at_a_time(self, requests):
        """Each request has its own answer, in order, known or not, and ends once."""
        kinds = [requests.remember(requests.known()), requests.known(), requests.remember(requests.known())]
        count = 600
        jobs = [requests.act(kinds[number % 3], ECHO) for number in range(count)]
        events = requests.settled()
        answers = [event for event in events if event[0] != "executed"]
        assert [event[1] for event in answers] == jobs
        assert [event[0] for event in answers] == ["encoded", "answered", "encoded"] * (count // 3)
        executed = [event[2][0] for event in events if event[0] == "executed"]
        executed += [event[-1][0] for event in answers if event[-1] is not None]
        assert sorted(executed) == [*range(1, count + 1)]

    def test_many_instances(self, requests):
        """One KnownRequest serves all instances of a model at a time, while Python takes the events."""
        known = requests.remember(requests.known())
        instances = [
            _triton.Instance(requests.model, number, f"model_{number}", 2, 0, False, [], [], "{}")
            for number in range(3)
        ]
        count = 300
        jobs = {(number, serial): Job() for number in range(3) for serial in range(1, count + 1)}

        def give(number):
            for serial in range(1, count + 1):
                body = DOCUMENT + contents(ECHO)[:-4] + serial.to_bytes(4)
                assert instances[number].execute_known(known, jobs[number, serial], body, 0, serial, None)
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
        known = requests.remember(requests.known())
        instance = _triton.Instance(requests.model, "me", "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        for serial in range(1, 51):
            assert instance.execute_known(known, Job(), DOCUMENT + contents(ECHO), 0, serial, None)
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
    @pytest.mark.parametrize("is_remembered", [False, True])
    def test_jobs_are_given_back(self, requests, actions, is_remembered):
        """Jobs and known requests are released with their last event at the latest."""
        known = requests.remember(requests.known()) if is_remembered else requests.known()
        for _ in range(20):
            seen = [weakref.ref(requests.act(known, action)) for action in actions]
            requests.settled()
            assert [each() for each in seen] == [None] * len(actions)


class TestIdentity:
    """The usual backend."""

    def run(self, made, known, contents):
        """The one event of a request, all of which is over before it is taken."""
        instance = _triton.Instance(made.model, None, "model_1", 2, 0, False, [], [], "{}")
        instance.initialize()
        assert instance.execute_known(known, Job(), DOCUMENT + contents, 0, 1, None)
        instance.finalize()
        made.take()
        (event,) = made.events
        made.events = []
        return event

    def test_parameters(self, make):
        """A request's parameters come again with each, and responses that have any are not encoded."""
        made = make("identity.cc", ["OUTPUT0"])
        tensors = [("INPUT0", "INT32", [2], 0, 8, 0, 0)]
        for parameters in ({}, {"a": 1, "b": "x"}):
            wire = ["", 0, 0, 0, None, parameters or "", tensors, "", None]
            known = _triton.KnownRequest(made.model, DOCUMENT, len(DOCUMENT) + 8, wire)
            known.remember(HEAD, [("OUTPUT0", "INT32", [2], 8)])
            for _ in range(3):
                what, _, *rest = self.run(made, known, b"abcdefgh")
                assert what == ("answered" if parameters else "encoded")
                assert (rest[2] == parameters) if parameters else (rest[0] == HEAD + b"abcdefgh")

    @pytest.mark.parametrize("outputs", [None, ["OUTPUT0"], ["OUTPUT1"]])
    def test_outputs_that_are_asked_for(self, make, outputs):
        """Only these are made."""
        made = make("identity.cc", ["OUTPUT0", "OUTPUT1"])
        tensors = [("INPUT0", "INT32", [1], 0, 4, 0, 0), ("INPUT1", "FP16", [0, 2], 4, 0, 0, 0)]
        known = _triton.KnownRequest(
            made.model, DOCUMENT, len(DOCUMENT) + 4, ["", 0, 0, 0, outputs, "", tensors, "", None]
        )
        what, _, _, found, *_ = self.run(made, known, b"abcd")
        assert what == "answered"
        assert [name for name, *_ in found] == (outputs or ["OUTPUT0", "OUTPUT1"])
        known.remember(HEAD, [(name, kind, shape, len(data)) for name, kind, shape, data in found])
        what, _, response, *_ = self.run(made, known, b"efgh")
        assert (what, response) == ("encoded", HEAD + (b"" if outputs == ["OUTPUT1"] else b"efgh"))
