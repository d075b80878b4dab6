# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as backends see them, and what backends do with them: see tests/native/requests.cc."""

import gc
import struct
import sys
import weakref

import pytest

IN = ("IN", "INT32", [1, 2], b"\1\0\0\0\2\0\0\0")
START = 1
NO_TEXT = "Invalid argument: [request id: describe] correlation ID in request is not a string"


@pytest.fixture
def backend(native):
    """The ID of the first request is the action for its batch."""
    return native("requests.cc", outputs=("OUT", "MORE"))


@pytest.fixture
def iterative(native):
    """The same, of a model that may have its requests executed again, and has states."""
    states = [("SUM", "INT32", [1, -1], ""), ("TEXT", "BYTES", [], "")]
    return native("requests.cc", outputs=("OUT", "MORE"), iterative=True, states=states)


def inputs_of(parameters, index):
    """The reported properties of an input."""
    prefix = f"input {index} "
    return {name.removeprefix(prefix): value for name, value in parameters.items() if name.startswith(prefix)}


class TestDescription:
    """All that a backend can ask a request for."""

    def test_is_what_was_sent(self, backend, request_of):
        """Id, flags, time limit, and the outputs of the model where the request names none."""
        (job,) = backend.run(request_of("describe", IN, flags=START, timeout=2**40))
        told = job.parameters
        assert told["id"] == "describe"
        assert told["flags"] == START
        assert told["timeout"] == 2**40
        assert told["cancelled"] is False
        assert told["outputs"] == "OUT:CPU0 MORE:CPU0 "

    @pytest.mark.parametrize("outputs", [[], ["MORE"], ["MORE", "OUT"]])
    def test_has_the_outputs_that_are_asked_for(self, backend, request_of, outputs):
        """In their order; also none."""
        (job,) = backend.run(request_of("describe", IN, outputs=outputs))
        assert job.parameters["outputs"] == "".join(f"{name}:CPU0 " for name in outputs)

    @pytest.mark.parametrize(
        ("correlation", "number", "text"),
        [
            (0, "0", NO_TEXT),
            ("", "0", NO_TEXT),
            (2**64 - 1, str(2**64 - 1), NO_TEXT),
            ("me", "Invalid argument: [request id: describe] correlation ID in request is not an unsigned int", "me"),
        ],
    )
    def test_has_a_correlation_id_of_one_kind(self, backend, request_of, correlation, number, text):
        """The correlation ID is a number or a text; reading it as the other kind is an error."""
        (job,) = backend.run(request_of("describe", IN, correlation=correlation))
        assert (job.parameters["correlation id"], job.parameters["correlation text"]) == (number, text)

    def test_has_parameters_of_all_types(self, backend, request_of):
        """Each under its own type."""
        sent = {"text": "Grüße", "long": "x" * 1000, "number": -(2**63), "yes": True, "no": False, "float": 0.5}
        (job,) = backend.run(request_of("describe", IN, parameters=sent))
        told = job.parameters
        assert told["parameters"] == len(sent)
        for name, value in sent.items():
            assert told[f"parameter {name}"] == value
            assert type(told[f"parameter {name}"]) is type(value)

    def test_has_inputs(self, backend, request_of):
        """Inputs are found by name and by index, with the same properties; an empty one has no buffer."""
        inputs = [
            IN,
            ("TEXT", "BYTES", [2], b"\1\0\0\0a\0\0\0\0"),
            ("EMPTY", "FP16", [0, 3], b""),
            ("S", "BOOL", [], b"\1"),
        ]
        (job,) = backend.run(request_of("describe", *inputs))
        for index, (name, datatype, shape, contents) in enumerate(inputs):
            assert inputs_of(job.parameters, index) == {
                "found": True,
                "name": name,
                "datatype": datatype,
                "shape": ",".join(map(str, shape)),
                "bytes": len(contents),
                "buffers": 1 if contents else 0,
                "memory": "CPU 0",
                "same": True,
            }

    @pytest.mark.parametrize("trace", ["", "context"])
    def test_may_be_followed_by_a_trace(self, backend, request_of, trace):
        """Which is read and is not in the way."""
        (job,) = backend.run(request_of("describe", IN, trace=trace))
        assert job.parameters["id"] == "describe"

    def test_wants_names_that_there_are(self, backend, request_of):
        """A result for an unknown name is null, with an error where Triton has one."""
        (job,) = backend.run(request_of("unknown", IN, parameters={"one": 1}))
        prefix = "Invalid argument: [request id: unknown] "
        assert job.parameters == {
            "input": prefix + "unknown request input name NO",
            "input by index": prefix + "out of bounds index 9: request has 1 inputs",
            "input name": prefix + "out of bounds index 9: request has 1 inputs",
            "input is null": True,
            "output name": prefix + "out of bounds index 9: request has 2 requested outputs",
            "parameter": "Invalid argument: out of bounds index 9: request has 1 parameters",
            "parameter is null": True,
            "buffer": "",
            "buffer is null": True,
        }


class TestWire:
    """A malformed request is refused as a whole: it is not executed and not reported as lost."""

    @pytest.mark.parametrize(
        ("place", "value", "raised"),
        [
            (0, 5, TypeError),
            (1, -1, OverflowError),
            (2, "", TypeError),
            (3, None, TypeError),
            (4, [5], TypeError),
            (5, {"p": None}, TypeError),
            (5, {"p": 2**64}, OverflowError),
            (6, [("IN", "INT32", [1], 0)], IndexError),
            (6, [("IN", "INT32", ["x"], 0, 4, 0, 0)], TypeError),
            (6, [("IN", "INT32", [1], 2**64, 4, 0, 0)], OverflowError),
            (6, [("IN", "INT32", [1], 0, -4, 0, 0)], OverflowError),
            (6, None, TypeError),
        ],
    )
    def test_is_checked(self, backend, request_of, place, value, raised):
        """A malformed request is refused, also behind a valid one."""
        bad, held = request_of("describe", IN)
        bad[place] = value
        with pytest.raises(raised):
            backend.execute(request_of("describe", IN), (bad, held))
        backend._running.clear()
        assert backend.run(request_of("describe", IN))[0].parameters["id"] == "describe"


class TestRelease:
    """Requests are given back."""

    def test_comes_with_flags(self, iterative, request_of):
        """Others are refused, and leave the request with its backend; RESCHEDULE asks for it to be executed again."""
        backend = iterative
        again, all_too, job = backend.execute(*(request_of("flags", IN) for _ in range(3)))
        backend.wait(lambda: again.released and all_too.released and job.over)
        begin = "Invalid argument: TRITONBACKEND_RequestRelease: release flags "
        assert job.parameters["none"].startswith(begin + "0 ")
        assert job.parameters["unknown"].startswith(begin + "5 ")
        assert again.released == all_too.released == [(True, None)]
        assert job.released == [(False, None)]
        assert job.parameters["again 0"] == job.parameters["again 1"] == ""
        backend.take()
        assert again.responses == all_too.responses == []

    def test_responses_after_a_reschedule(self, native, request_of):
        """They are told apart from those of the next execution, which may have begun."""
        backend = native("iterate.cc", iterative=True)
        number = struct.pack("q", 2)
        (first,) = backend.execute(request_of("", ("IN", "INT64", [1], number), correlation=7, flags=START))
        backend.wait(lambda: len(first.events) == 2)
        (_, released), (kind, (final, failure, ((name, *_, buffer),), _)) = first.events
        assert (released, kind, final, failure) == ((True, None), "earlier", False, None)
        assert (name, bytes(buffer)) == ("OUT", struct.pack("q", 1))
        (second,) = backend.run(request_of("", ("IN", "INT64", [1], number), correlation=7))
        assert [final for final, *_ in second.responses] == [True]

    def test_to_be_executed_again_is_for_iterative_models(self, backend, request_of):
        """In any other it is refused, in Triton's words, and leaves the request with its backend."""
        again, all_too, job = backend.run(*(request_of("flags", IN) for _ in range(3)))
        refusal = "Invalid argument: Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model "
        refusal += "is not configured to handle such a flag."
        assert job.parameters["again 0"] == job.parameters["again 1"] == refusal
        for each in (again, all_too):
            assert each.responses == [(True, None, [], None)]
            assert each.released == [(False, None)]

    def test_without_an_answer_is_a_fault(self, backend, request_of):
        """A request without an answer is the backend's fault, and fails with that reason."""
        *lost, job = backend.run(*(request_of("lost", IN) for _ in range(4)))
        assert job.released
        assert job.parameters is None
        for each in lost:
            assert each.failure == (
                1,
                "model 'model' sent no final response: its backend released the request, and can send none now",
            )
            assert each.released == [(False, None)]
            assert len(each.responses) == 1

    def test_is_the_hosts_where_execute_failed(self, backend, request_of):
        """Those that the backend has not released are answered with its error, and released."""
        first, second = backend.run(request_of("fail", IN), request_of("", IN))
        assert second.failure == (4, "cannot")
        assert second.released == [(False, None)]
        assert first.failure is not None

    def test_lets_go_of_the_job(self, backend, request_of):
        """A request that has ended is not referenced any more."""
        job, lost = backend.run(request_of("lost", IN), request_of("lost", IN))
        references = [weakref.ref(job), weakref.ref(lost)]
        del job, lost
        gc.collect()
        assert [reference() for reference in references] == [None, None]

    def test_leaves_what_it_was_given_as_it_was(self, backend, request_of):
        """No reference to the objects of a request is left over."""
        texts = ["id" * 20, "NAME" * 20, "text" * 20]
        identity, name, text = texts
        before = [sys.getrefcount(each) for each in texts]
        for _ in range(10):
            backend.run(request_of(identity, (name, "INT32", [1], b"1234"), parameters={text: text}, outputs=[text]))
        gc.collect()
        assert [sys.getrefcount(each) for each in texts] == before


class TestCancel:
    """Cancellation of requests."""

    def test_reaches_the_request_and_its_factories(self, backend, request_of):
        """A backend that looks sees it."""
        serial = backend._serial
        first, second = backend.execute(request_of("cancelled", IN), request_of("", IN))
        backend.instance.cancel(serial)
        backend.wait(lambda: first.over and second.over)
        assert second.parameters == {"cancelled": True}
        assert first.responses == [(True, None, None, None)]

    def test_is_nothing_where_the_request_is_over(self, backend, request_of):
        """Cancelling a request that has ended, or never existed, has no effect."""
        backend.run(request_of("describe", IN))
        backend.instance.cancel(1)
        backend.instance.cancel(1000)
        (job,) = backend.run(request_of("describe", IN))
        assert job.parameters["cancelled"] is False


class TestStates:
    """The states that a backend keeps between the requests of a sequence."""

    @pytest.fixture
    def shared(self, native):
        """A model whose state shares the memory of its input."""
        return native("states.cc", decoupled=False, states=[("STATE_OUT", "INT32", [-1], "STATE_IN")])

    @pytest.mark.parametrize("action", ["add", "touch", "late"])
    def test_share_the_memory_of_their_input(self, shared, request_of, action):
        """A backend that gets a buffer of the same size gets that of the input. What is there at the release is the
        state, also without an update."""
        (job,) = shared.run(request_of(action, ("STATE_IN", "INT32", [1], b"\5\6\7\x08")))
        ((name, datatype, shape, buffer),) = job.states
        assert (name, datatype, shape, bytes(buffer)) == ("STATE_OUT", "INT32", [1], b"\6\6\7\x08")
        assert (job.parameters["same"], job.parameters["before"]) == (True, "05060708")
        kinds = [kind for kind, _ in job.events]
        assert kinds.index("state") < kinds.index("released")

    def test_of_another_size_share_nothing(self, shared, request_of):
        """They have memory of their own."""
        (job,) = shared.run(request_of("grow", ("STATE_IN", "INT32", [1], b"\5\6\7\x08")))
        assert [(shape, bytes(buffer)) for _, _, shape, buffer in job.states] == [([2], b"\7" * 8)]
        assert job.parameters["same"] is False

    def test_that_are_not_asked_for_stay(self, shared, request_of):
        """Without a buffer nothing is written."""
        (job,) = shared.run(request_of("read", ("STATE_IN", "INT32", [1], b"\5\6\7\x08")))
        assert job.states == []
        assert job.parameters["contents"] == "05060708"

    def test_come_out_before_the_release(self, iterative, request_of):
        """Each update has the contents of its time; a state that is not as configured is refused."""
        (job,) = iterative.run(request_of("states", IN))
        assert [(*rest, bytes(buffer)) for *rest, buffer in job.states] == [
            ("SUM", "INT32", [1, 2], b"first..."),
            ("SUM", "INT32", [1, 2], b"second.."),
            ("TEXT", "BYTES", [], b"abc"),
        ]
        kinds = [kind for kind, _ in job.events]
        assert kinds.index("released") > 2
        assert job.parameters == {
            "no datatype": "Invalid argument: TRITONBACKEND_StateNew: state 'SUM' has no datatype",
            "in the CPU's memory": True,
            "the same": True,
            "another": True,
            "bytes": 3,
            "too much": f"Unavailable: no memory for the {2**64 - 1} bytes of state 'TEXT'",
            "none": True,
            "no name": "Invalid argument: state 'NO' is not a valid state name.",
            "other type": "Invalid argument: unable to add state 'SUM'. Its datatype is INT32, got FP32",
            "other dims": "Invalid argument: unable to add state 'SUM'. Its shape is [1, -1], got [2, 2]",
            "fewer dims": "Invalid argument: unable to add state 'SUM'. Its shape is [1, -1], got [1]",
            "negative dim": "Invalid argument: unable to add state 'SUM'. Its shape is [1, -1], got [1, -1]",
            "no size": f"Invalid argument: unable to add state 'SUM'. No memory has the shape [1, {2**62}]",
            "other size": "Invalid argument: unable to add state 'SUM'. It has 28 bytes, got 8",
        }

    def test_are_those_of_the_model(self, backend, request_of):
        """Most have none: Triton's words."""
        (job,) = backend.run(request_of("no states", IN))
        assert job.parameters == {
            "state": "Invalid argument: unable to add state 'SUM'. State configuration is missing for model 'model'."
        }


class TestMemory:
    """The memory that a backend allocates for itself."""

    def test_is_the_systems(self, backend, request_of, no_driver):
        """Other memory is refused where there is no driver, in Triton's words, by which backends take this one."""
        (job,) = backend.run(request_of("memory", IN))
        assert job.parameters == {
            "gpu": f"Unavailable: CudaMemoryManager has no preallocated CUDA memory: {no_driver}",
            "pinned": f"Internal: failed to allocate pinned system memory: no pinned memory pool: {no_driver}",
            "too much": "Unavailable: CPU memory allocation failed",
            "free": "Unavailable: CudaMemoryManager has no preallocated CUDA memory",
        }


def test_null_is_refused_everywhere(native, request_of):
    """By an error that names the function: none of them dies of it."""
    (job,) = native("nulls.cc").run(request_of("", IN))
    assert job.parameters == {"calls": 91}
