# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls of native code to the server: a backend whose steps the test gives, and the test in place of the server.

Messages, and the order in which callbacks are called, are those that Triton has for the same backend.
"""

import struct
import threading

import pytest

FP32 = "FP32"
REQUEST = ("new plus -1", "input IN 1 2", "data IN 1 2", "callbacks")
NAMED = "is not supported: repositories are named when the server starts"
NOT_ASKED = "It is not possible to {} before calling TRITONSERVER_InferAsync."


class Server:
    """The extension, with a test that answers its calls. `answers` says how, by method; `calls` are all there were."""

    def __init__(self, triton):
        self._triton = triton
        self.calls = []
        self.answers = {"InferenceRequestNew": lambda call: call.answer(None), "infer": plus}

    def __getattr__(self, name):
        return getattr(self._triton, name)

    def drain(self):
        events = self._triton.drain()
        for kind, *fields in events:
            if kind == self._triton.CALL:
                (call,) = fields
                self.calls.append((call.method, call.arguments))
                self.answers[call.method](call)
        return [event for event in events if event[0] != self._triton.CALL]

    def arguments(self, method):
        """Of the one call of a method."""
        ((_, arguments),) = [call for call in self.calls if call[0] == method]
        return arguments


def floats(*values):
    return struct.pack(f"{len(values)}f", *values)


def contents_of(call):
    return [bytes(contents) for *_, contents in call.arguments[9]]


def plus(call):
    """Add one to the only input."""
    ((_, datatype, shape, contents),) = call.arguments[9]
    values = [value + 1 for value in memoryview(contents).cast("f")]
    call.answer(None)
    call.respond(True, [("OUT", datatype, shape, floats(*values))], {}, None, "plus", 3, None)


@pytest.fixture
def instance(native):
    instance = native("server_steps.cc", outputs=("RESULT",), decoupled=False)
    instance.triton = Server(instance.triton)
    return instance


@pytest.fixture
def server(instance):
    return instance.triton


@pytest.fixture
def steps(instance, request_of):
    """`steps(line...)`: the results of the steps, and of their callbacks."""

    def steps(*lines):
        script = "\n".join(lines).encode()
        command = ("COMMAND", "BYTES", [1], struct.pack("<I", len(script)) + script)
        (job,) = instance.run(request_of("outer", command))
        ((_, failure, outputs, _),) = job.responses
        assert failure is None
        ((_, _, _, result),) = outputs
        return bytes(result)[4:].decode().splitlines()

    return steps


def test_request(steps):
    """A request has the properties that were set, and refuses what Triton refuses."""
    assert steps(
        "new plus -1",
        "describe",
        "cancelled",
        "cancel",
        "id seven",
        "number 5",
        "flags 3",
        "priority 5000000000",
        "timeout 12",
        "describe",
        "text abc",
        "describe",
        f"text {'x' * 129}",
        "input IN 1 2",
        "input IN 1 2",
        "raw IN",
        "remove_input XX",
        "data XX 1",
        "remove_data XX",
        "gpu IN",
        "output OUT",
        "output OUT",
        "remove_output XX",
        "remove_inputs",
        "raw IN",
        "raw IN",
        "infer",
        "response_callback",
        "infer",
    ) == [
        "new: ok",
        "describe: id '' flags 0 priority 0 timeout 0 number ok 0 "
        "text Invalid argument: given request's correlation id is not a string ",
        f"cancelled: Internal: {NOT_ASKED.format('query cancellation status')}",
        f"cancel: Internal: {NOT_ASKED.format('cancel an inference request')}",
        "id: ok",
        "number: ok",
        "flags: ok",
        "priority: ok",
        "timeout: ok",
        "describe: id 'seven' flags 3 priority 5000000000 timeout 12 number ok 5 "
        "text Invalid argument: given request's correlation id is not a string ",
        "text: ok",
        "describe: id 'seven' flags 3 priority 5000000000 timeout 12 "
        "number Invalid argument: given request's correlation id is not an unsigned int 0 text ok abc",
        "text: Invalid argument: string correlation ID cannot be longer than 128 characters",
        "input: ok",
        "input: Invalid argument: [request id: seven] input 'IN' already exists in request",
        "raw: Invalid argument: [request id: seven] raw input 'IN' can't be added to request with other inputs",
        "remove_input: Invalid argument: [request id: seven] input 'XX' does not exist in request",
        "data: Invalid argument: [request id: seven] input 'XX' does not exist in request",
        "remove_data: Invalid argument: [request id: seven] input 'XX' does not exist in request",
        "gpu: ok",
        "output: ok",
        "output: ok",
        "remove_output: ok",
        "remove_inputs: ok",
        "raw: ok",
        "raw: Invalid argument: [request id: seven] raw input 'IN' already exists in request",
        "infer: Invalid argument: TRITONSERVER_ServerInferAsync: the request has no release callback",
        "response_callback: ok",
        "infer: Invalid argument: TRITONSERVER_ServerInferAsync: the request has no release callback",
    ]


def test_what_the_server_is_told(steps, server):
    """All that a request says; contents in pieces are one, and those for some host policy stand in for others."""
    assert steps(
        "new plus 3",
        "id seven",
        "text abc",
        "flags 3",
        "priority 2",
        "timeout 12",
        "string s text",
        "int i 5",
        "bool b 1",
        "double d 2.5",
        "int i 6",
        "input IN 1 3",
        "data IN 1",
        "policy IN other 7 7 7",
        "attributes IN 2 3",
        "output OUT",
        "output XX",
        "remove_output XX",
        "callbacks",
        "infer",
    )[-6:] == [
        "start",
        "allocate OUT 12",
        "response of plus 3 to 'seven', flags 1, ok",
        "output OUT FP32 [1,3] 2 3 4",
        "free 12",
        "released, flags 1",
    ]
    assert server.arguments("InferenceRequestNew") == ("plus", 3, "")
    number, *told, inputs, outputs, trace, loading, job = server.arguments("infer")
    assert number > 0
    assert told == ["plus", 3, "seven", "abc", 3, 2, 12, {"s": "text", "i": 6, "b": True, "d": 2.5}]
    assert [tuple(each[:3]) for each in inputs] == [("IN", FP32, [1, 3])]
    assert (outputs, trace, loading) == (["OUT"], "", "")
    assert [name for name, *_ in job.events] == ["response", "released"]  # those of the request that it was made for


@pytest.mark.parametrize(
    ("lines", "contents"),
    [
        ([], b""),
        (["data IN"], b""),
        (["data IN 1"], floats(1)),
        (["data IN 1", "remove_data IN", "data IN 2"], floats(2)),
        (["policy IN a 1", "policy IN b 2", "policy IN a 3"], floats(1, 3)),
        (["policy IN a 1", "data IN 2"], floats(2)),
    ],
)
def test_contents(steps, server, lines, contents):
    """The contents of an input, however they were put together; a raw input has neither datatype nor shape."""
    seen = []

    def look(call):
        seen.extend(contents_of(call))
        call.fail(3, "seen")

    server.answers["infer"] = look
    assert steps("new plus -1", "raw IN", *lines, "callbacks", "infer")[-1] == "infer: Invalid argument: seen"
    assert seen == [contents]
    *_, inputs, outputs, _, _, _ = server.arguments("infer")
    assert (inputs[0][:3], outputs) == (("IN", None, []), None)


def test_many_responses(steps, server):
    """They come in order, each on its own; the last one may be none at all."""
    done = []

    def count(call):
        call.answer(None)
        for index in range(100):
            outputs = [("OUT", FP32, [1], bytearray(floats(index))), ("NONE", FP32, [0], b"")]
            call.respond(False, outputs, {}, None, "plus", 1, lambda index=index: done.append(index))
        call.respond(True, None, {}, None, "plus", 1, None)
        call.respond(False, None, {}, (1, "too late"), "plus", 1, lambda: done.append("late"))

    server.answers["infer"] = count
    lines = steps(*REQUEST, "infer")
    assert [line for line in lines if line.startswith("output OUT")] == [f"output OUT FP32 [1] {i}" for i in range(100)]
    assert lines.count("output NONE FP32 [0]") == 100
    assert lines[-2:] == ["no response, flags 1", "released, flags 1"]
    assert sorted(done, key=str) == [*sorted(range(100), key=str), "late"]


def test_buffers(steps, server):
    """Memory of an output stays as it is until it is copied, and is free then."""
    contents = bytearray(floats(5))
    resized = []

    def resize():
        contents.append(0)  # raises BufferError while anybody holds it
        resized.append(len(contents))

    def answer(call):
        call.answer(None)
        call.respond(True, [("OUT", FP32, [1], contents)], {}, None, "plus", 1, resize)
        with pytest.raises(BufferError):
            contents.append(0)

    server.answers["infer"] = answer
    assert "output OUT FP32 [1] 5" in steps(*REQUEST, "infer")
    assert resized == [5]


def test_parameters(steps, server):
    """A response brings parameters of each type."""

    def answer(call):
        call.answer(None)
        call.respond(True, [], {"s": "text", "i": -5, "b": True, "d": 2.5}, None, "plus", 1, None)

    server.answers["infer"] = answer
    lines = steps(*REQUEST, "infer")
    assert lines[-5:-1] == [
        "parameter s STRING text",
        "parameter i INT -5",
        "parameter b BOOL 1",
        "parameter d DOUBLE 2.5",
    ]


def test_refusal(steps, server):
    """A request that is refused is still its maker's, who may give it again."""
    refused = iter([lambda call: call.fail(5, "not now"), plus])
    server.answers["infer"] = lambda call: next(refused)(call)
    assert steps(*REQUEST, "infer", "cancelled", "infer")[4:] == [
        "infer: Unsupported: not now",
        "cancelled: false",
        "infer: ok",
        "start",
        "allocate OUT 8",
        "response of plus 3 to '', flags 1, ok",
        "output OUT FP32 [1,2] 2 3",
        "free 8",
        "released, flags 1",
    ]


def test_failure(steps, server):
    """A model's error is a response."""

    def answer(call):
        call.answer(None)
        call.fail(3, "too late")
        call.respond(True, None, {}, (4, "not that"), "plus", 1, None)

    server.answers["infer"] = answer
    assert steps(*REQUEST, "infer")[-4:] == [
        "infer: ok",
        "start",
        "response of plus 1 to '', flags 1, Unavailable: not that",
        "released, flags 1",
    ]


def test_unknown_model(steps, server):
    """There is no request to a model that there is not."""
    server.answers["InferenceRequestNew"] = lambda call: call.fail(2, "there is none")
    assert steps("new plus 7") == ["new: Not found: there is none"]


def test_gpus(steps, no_driver):
    """Without a driver there is no memory of GPUs that inputs are copied from."""
    assert steps("new plus 7", "input IN 1 1", "gpu IN", "callbacks", "infer")[-1] == (
        f"infer: Internal: input 'IN' cannot be copied from GPU 0: {no_driver}"
    )


@pytest.mark.parametrize(
    ("line", "failure", "freed"),
    [
        ("refuse OUT", "Unavailable: no room", []),
        ("elsewhere OUT", "Internal: output 'OUT' cannot be copied to GPU 0: {}", ["free 8"]),
    ],
)
def test_allocator(steps, line, failure, freed, no_driver):
    """An output that the allocator cannot place fails the response, and is freed if it was allocated."""
    failure = failure.format(no_driver)
    assert steps(*REQUEST, line, "infer")[-4 - len(freed) :] == [
        "start",
        "allocate OUT 8",
        *freed,
        f"response of plus 3 to '', flags 1, {failure}",
        "released, flags 1",
    ]


def test_waiting_callbacks(steps):
    """Any number of callbacks that wait for other callbacks comes to an end."""
    count = 20
    one = (*REQUEST, "nested plus", "send")
    lines = steps(*one * count, "wait")
    assert lines.count("output OUT FP32 [1,2] 2 3") == count
    assert lines.count("nested output OUT FP32 [1,1] 8") == count


def test_cancel(steps, server):
    """The server gets the cancellation of a request once; its responses come all the same."""
    requests = []

    def take(call):
        call.answer(None)
        requests.append(call)

    def cancel(call):
        (number,) = call.arguments
        (request,) = requests
        assert request.arguments[0] == number
        request.respond(True, None, {}, (7, "cancelled"), "plus", 1, None)

    server.answers |= {"infer": take, "cancel": cancel}
    assert steps(*REQUEST, "send", "infer", "delete", "cancelled", "cancel", "cancel", "cancelled", "wait")[4:] == [
        "send: ok",
        "infer: Invalid argument: TRITONSERVER_ServerInferAsync: the request was given to the server before, and is "
        "not released",
        "delete: Invalid argument: TRITONSERVER_InferenceRequestDelete: the request is the server's until it is "
        "released",
        "cancelled: false",
        "cancel: ok",
        "cancel: ok",
        "cancelled: true",
        "wait: ok",
        "start",
        "response of plus 1 to '', flags 1, Cancelled: cancelled",
        "released, flags 1",
    ]
    assert [method for method, _ in server.calls].count("cancel") == 1


def test_lost_calls(steps, server):
    """A call that Python forgets to answer fails instead of waiting for ever."""
    server.answers["ServerIsLive"] = lambda call: None
    server.answers["infer"] = lambda call: None
    lines = steps("live", *REQUEST, "infer")
    assert lines[0] == "live: Internal: the server has not answered"
    assert lines[-1] == "infer: Internal: the server has not answered"
    server.answers["infer"] = lambda call: call.answer(None)
    assert steps(*REQUEST, "infer")[-2:] == [
        "response of  0 to '', flags 1, Internal: the server has lost the request",
        "released, flags 1",
    ]


def test_the_end(steps, server):
    """A server that stops fails all waiting calls and later ones."""

    def stop(call):
        server.accept_calls(False)
        call.answer(True)

    server.answers["ServerIsLive"] = stop
    try:
        assert steps("live", "ready", "new plus -1") == [
            "live: Unavailable: Server exiting",
            "ready: Unavailable: Server exiting",
            "new: Unavailable: Server exiting",
        ]
    finally:
        server.accept_calls(True)
    assert steps("new plus -1") == ["new: ok"]


QUERIES = [
    ("live", "ServerIsLive", (), True, "true"),
    ("ready", "ServerIsReady", (), False, "false"),
    ("model_ready plus", "ServerModelIsReady", ("plus", -1), True, "true"),
    ("batch plus", "ServerModelBatchProperties", ("plus", -1), 2, "2"),
    ("transaction plus", "ServerModelTransactionProperties", ("plus", -1), 1, "1"),
    ("metadata", "ServerMetadata", (), b"{}", "{}"),
    ("model_metadata plus", "ServerModelMetadata", ("plus", -1), b"{}", "{}"),
    ("config plus 1", "ServerModelConfig", ("plus", -1, 1), b"{}", "{}"),
    ("statistics plus", "ServerModelStatistics", ("plus", -1), b"{}", "{}"),
    ("index 0", "ServerModelIndex", (False,), b"[]", "[]"),
    ("index 1", "ServerModelIndex", (True,), b"[]", "[]"),
    ("metrics", "ServerMetrics", (), b"# HELP a\nb", "# HELP a"),
    ("load plus", "ServerLoadModel", ("plus", "", {}, ""), None, "ok"),
    ("load_config plus {}", "ServerLoadModel", ("plus", "{}", {}, ""), None, "ok"),
    ("load_file plus file:a bc", "ServerLoadModel", ("plus", "", {"file:a": b"bc"}, ""), None, "ok"),
    ("unload plus", "ServerUnloadModel", ("plus", False, ""), None, "ok"),
    ("unload_all plus", "ServerUnloadModel", ("plus", True, ""), None, "ok"),
]


@pytest.mark.parametrize(("line", "method", "arguments", "answer", "said"), QUERIES)
def test_queries(steps, server, line, method, arguments, answer, said):
    """Functions of the server: their arguments, and the results for answers and failures."""
    answers = iter(
        [lambda call: call.answer(answer), lambda call: call.fail(2, "no"), lambda call: call.answer(1 << 40)]
    )
    server.answers[method] = lambda call: next(answers)(call)
    verb = line.split()[0]
    expected = [f"{verb}: {said}", f"{verb}: Not found: no"]
    if not isinstance(answer, int) or isinstance(answer, bool):
        expected.append(f"{verb}: Internal: {method} was answered with something else")
    assert steps(*[line] * len(expected)) == expected
    assert server.calls[0] == (method, arguments)


def test_unsupported(steps):
    """Functions that pyruntime does not support."""
    assert steps("register /a", "unregister /a", "load_number plus") == [
        f"register: Unsupported: TRITONSERVER_ServerRegisterModelRepository {NAMED}",
        f"unregister: Unsupported: TRITONSERVER_ServerUnregisterModelRepository {NAMED}",
        "load_number: Invalid argument: Unrecognized load parameter 'number' of type 'INT'",
    ]


def test_the_thread_that_answers(instance, steps):
    """It cannot wait for itself: that is an error. Any other thread can."""
    instance.triton.answers["ServerIsLive"] = lambda call: call.answer(True)
    steps("live")
    assert instance.instance.is_ready() == "the server cannot be asked by the thread that answers for it"
    answers = []
    thread = threading.Thread(target=lambda: answers.append(instance.instance.is_ready()))
    thread.start()
    instance.wait(lambda: len(instance.triton.calls) == 2)
    thread.join(60)
    assert answers == [None]


def test_bad_answers(steps, server):
    """A bad answer is an exception in Python, and the call fails."""

    def answer(call):
        for bad in (1.5, "text", 1 << 64):
            with pytest.raises((TypeError, OverflowError)):
                call.answer(bad)
        with pytest.raises(ValueError, match="only requests have responses"):
            call.respond(True, None, {}, None, "plus", 1, None)

    def respond(call):
        call.answer(None)
        for bad in ([("OUT", FP32, [1], 5)], [("OUT", FP32, [1])], [5], 5):
            with pytest.raises(TypeError):
                call.respond(True, bad, {}, None, "plus", 1, None)
        done = []
        for bad in (object(), 1 << 64):
            with pytest.raises((TypeError, OverflowError)):
                call.respond(True, [], {"p": bad}, None, "plus", 1, lambda: done.append(1))
        server.drain()
        assert done == [1, 1]  # a response need not be accepted

    server.answers |= {"ServerIsLive": answer, "infer": respond}
    lines = steps("live", *REQUEST, "infer")
    assert lines[0] == "live: Internal: the server has not answered"
    assert lines[-2] == "response of  0 to '', flags 1, Internal: the server has lost the request"
