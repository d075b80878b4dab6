# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""generate and generate_stream: decoupled models and others over HTTP, for clients that read, wait, stall or go."""

import http.client
import json
import os
import socket
from contextlib import closing

import numpy as np
import pytest

from pyruntime.runtime.frontends import listeners
from pyruntime.utils.flow_control import RESPONSES_AHEAD_MAX

from .harness.raw import reset
from .harness.waiting import LIMIT_S

READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: any\r\n\r\n"
MIB = 1 << 20
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)

STREAMING = """
backend: "python"
input [
  { name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] optional: true }
]
output [
  { name: "TOKEN" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "INDEX" data_type: TYPE_INT32 dims: [ 1 ] }
]
model_transaction_policy { decoupled: true }
"""
# A word for each response. Parameters say which of them are errors, where it dies, and how it ends.
TOKENS = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self.answer(request)

    def answer(self, request):
        parameters = json.loads(request.parameters())
        words = pb_utils.get_input_tensor_by_name(request, "PROMPT").as_numpy()[0].decode().split()
        count = pb_utils.get_input_tensor_by_name(request, "COUNT")
        words = words if count is None else words[: count.as_numpy()[0]]
        sender = request.get_response_sender()
        for index, word in enumerate(words):
            if index == parameters.get("dies_at"):
                os._exit(3)
            if index == parameters.get("fails_at"):
                error = pb_utils.TritonError("no such word", pb_utils.TritonError.NOT_FOUND)
                response = pb_utils.InferenceResponse(error=error)
            else:
                outputs = [pb_utils.Tensor("TOKEN", np.array([word], np.object_)),
                           pb_utils.Tensor("INDEX", np.array([index], np.int32))]
                response = pb_utils.InferenceResponse(outputs)
            last = index == len(words) - 1 and parameters.get("final_with_last", False)
            sender.send(response, FINAL if last else 0)
            if last:
                return
        sender.send(flags=FINAL)
"""
# Each of its words waits for a line in its gate; it notes the words that it has sent.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.gate = args["model_repository"] + "/gate"

    def execute(self, requests):
        (request,) = requests
        sender = request.get_response_sender()
        with open(self.gate) as gate:
            for line in gate:
                word = pb_utils.Tensor("TOKEN", np.array([line.strip()], np.object_))
                sender.send(pb_utils.InferenceResponse([word]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# Sends events, or is silent, until it is cancelled.
ENDLESS = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        for request in requests:
            talks = "talk" in request.parameters()
            sender = request.get_response_sender()
            open(self.folder + "/begun", "a").close()
            with open(self.folder + "/executed", "a") as executed:
                print(request.request_id(), file=executed)
            while not sender.is_cancelled():
                if talks:
                    word = pb_utils.Tensor("TOKEN", np.array(["x" * 10_000], np.object_))
                    sender.send(pb_utils.InferenceResponse([word]))
                else:
                    time.sleep(0.001)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            os.rename(self.folder + "/begun", self.folder + "/cancelled")
"""
# Works until it is cancelled.
PATIENT = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        (request,) = requests
        open(self.folder + "/begun", "a").close()
        while not request.is_cancelled():
            time.sleep(0.001)
        open(self.folder + "/cancelled", "a").close()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])]
"""
# As many KiB for each response as COUNT says, 400 times; makes a mark for each that it has sent.
LARGE = """
class TritonPythonModel:
    def initialize(self, args):
        self.sent = args["model_repository"] + "/sent"

    def execute(self, requests):
        for request in requests:
            size = pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy()[0] << 10
            sender = request.get_response_sender()
            for index in range(400):
                text = pb_utils.Tensor("TOKEN", np.array(["x" * size], np.object_))
                number = pb_utils.Tensor("INDEX", np.array([index], np.int32))
                sender.send(pb_utils.InferenceResponse([text, number]))
                with open(self.sent, "a" if index else "w") as sent:
                    sent.write(".")
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
# One thread sends to all requests of a batch in turn, as many responses as COUNT says, and ends the first one last.
IN_TURN = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    def execute(self, requests):
        counts = [pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().item() for request in requests]
        senders = [request.get_response_sender() for request in requests]
        for index in range(max(counts)):
            for count, sender in zip(counts, senders):
                if index < count:
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("INDEX", np.array([[index]], np.int32))]))
        for sender in reversed(senders):
            sender.send(flags=FINAL)
"""
# Two requests are one batch, and one request is a batch after a while.
PAIRS = "max_batch_size: 2 dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 200000 }"
ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        def answer(request):
            tensor = request.inputs()[0].as_numpy()
            if "fail" in request.parameters():
                return pb_utils.InferenceResponse(error=pb_utils.TritonError("as asked"))
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor)], parameters={"size": tensor.size})
        return [answer(request) for request in requests]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models that have no state."""
    repository = tmp_path_factory.mktemp("generate")
    write_model(repository, "tokens", TOKENS, STREAMING)
    write_model(repository, "large", LARGE, STREAMING)
    write_model(repository, "echo", ECHO)
    write_model(repository, "batched", ECHO, more="max_batch_size: 8")
    with serving(repository) as server:
        yield server


def post(path, document, version=b"1.1", extra=b""):
    """A request, as it goes over the wire."""
    body = json.dumps(document).encode()
    return b"POST %b HTTP/%b\r\nHost: any\r\n%bContent-Length: %d\r\n\r\n%b" % (
        path.encode(), version, extra, len(body), body,
    )  # fmt: skip


def generate(server, model, **document):
    """Status and document of one answer."""
    answer = server.request("POST", f"/v2/models/{model}/generate", json.dumps(document))
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status, json.loads(answer.body)


def stream(server, model, **document):
    """Status and events of one stream, read to its end by a client that knows its HTTP."""
    answer = server.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(document))
    assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["Transfer-Encoding"] == "chunked"
    return answer.status, events(answer.body)


def events(body):
    """The events of a whole stream, which must hold nothing else."""
    *blocks, rest = body.split(b"\n\n")
    assert rest == b""
    return [json.loads(block.removeprefix(b"data: ")) for block in blocks]


def read_event(response):
    """The next event of a stream that is under way."""
    line = response.readline()
    assert line.startswith(b"data: "), line
    assert response.readline() == b"\n"
    return json.loads(line[6:])


def read_answer(file):
    """The next response of a bare connection, as (status, headers, body)."""
    status = int(file.readline().split()[1])
    headers, body = {}, b""
    while line := file.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    if "transfer-encoding" in headers:
        while size := int(file.readline(), 16):
            body += file.read(size)
            assert file.readline() == b"\r\n"
        assert file.readline() == b"\r\n"
    elif "content-length" in headers:
        body = file.read(int(headers["content-length"]))
    else:
        body = file.read()
    return status, headers, body


def open_stream(server, model, **document):
    """A stream under way: the connection, to be closed, and its response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)
    connection.request("POST", f"/v2/models/{model}/generate_stream", json.dumps(document))
    return connection, connection.getresponse()


class TestStreams:
    def test_tokens(self, server):
        """Each response is an event, in the order of the model, with the id of the request."""
        prompt = "the quick brown fox é"
        status, found = stream(server, "tokens", id="7", PROMPT=prompt)
        assert status == 200
        assert found == [
            {"id": "7", "model_name": "tokens", "model_version": "1", "TOKEN": word, "INDEX": index}
            for index, word in enumerate(prompt.split())
        ]

    @pytest.mark.parametrize("count", [1, 2, 5000])
    def test_of_any_length(self, server, count):
        """However many there are, none is lost or doubled; the end rides on the last one or comes alone."""
        for final_with_last in (False, True):
            found = stream(server, "tokens", PROMPT="a " * count, parameters={"final_with_last": final_with_last})[1]
            assert [each["INDEX"] for each in found] == list(range(count))

    def test_of_nothing(self, server):
        """A model without responses makes an empty stream."""
        assert stream(server, "tokens", PROMPT="") == (200, [])

    def test_optional_inputs_stand_anywhere(self, server):
        """An input may be given as a list, and among the parameters."""
        for document in ({"COUNT": 2}, {"COUNT": [2]}, {"parameters": {"COUNT": 2}}):
            assert [each["TOKEN"] for each in stream(server, "tokens", PROMPT="a b c", **document)[1]] == ["a", "b"]

    def test_texts_as_long_as_a_body_may_be(self, server):
        """A file in base64 is one long string. It reaches the model as it is."""
        words = [letter * (12 * MIB) for letter in "abc"]
        status, found = stream(server, "tokens", PROMPT=" ".join(words))
        assert (status, [each["TOKEN"] == word for each, word in zip(found, words, strict=True)]) == (200, [True] * 3)

    def test_model_that_is_not_decoupled(self, server):
        """Its one response is the one event, with its parameters."""
        found = stream(server, "echo", IN=[1, 2])
        assert found == (200, [{"model_name": "echo", "model_version": "1", "size": 2, "OUT": [1, 2]}])

    def test_versions(self, server):
        """A version may be asked for."""
        path = "/v2/models/tokens/versions/1/generate_stream"
        assert len(events(server.request("POST", path, json.dumps({"PROMPT": "a b"})).body)) == 2
        assert server.request("POST", path.replace("1", "9"), "{}").status == 404

    def test_arrive_as_they_are_made(self, tmp_path, model, serve):
        """An event is with its client before the model makes the next one."""
        folder = model("gated", GATED, STREAMING)
        os.mkfifo(folder / "gate")
        server = serve()
        with server.connect() as sock, sock.makefile("rb") as file:
            sock.sendall(post("/v2/models/gated/generate_stream", {"PROMPT": ""}))
            with (folder / "gate").open("w") as gate:
                for word in ("one", "two"):
                    print(word, file=gate, flush=True)
                    while not (line := file.readline()).startswith(b"data: "):
                        pass
                    assert json.loads(line[6:])["TOKEN"] == word
            assert file.read(len(b"\n\r\n0\r\n\r\n")) == b"\n\r\n0\r\n\r\n"

    def test_at_the_same_time(self, server):
        """Streams of one model run concurrently, read in any order."""
        streams = [open_stream(server, "tokens", id=str(number), PROMPT="a b c " * 100) for number in range(20)]
        for number, (connection, response) in reversed(list(enumerate(streams))):
            with closing(connection):
                found = events(response.read())
            assert [(each["id"], each["INDEX"]) for each in found] == [(str(number), index) for index in range(300)]


class TestErrors:
    def test_first(self, server):
        """The status is that of the first response, if that is an error; the stream goes on."""
        status, found = stream(server, "tokens", PROMPT="a b", fails_at=0)
        assert status == 404
        assert found[0] == {"error": "no such word"}
        assert found[1]["TOKEN"] == "b"

    def test_in_the_middle(self, server):
        """A later error is an event."""
        status, found = stream(server, "tokens", PROMPT="a b c", fails_at=1)
        assert status == 200
        assert [each.get("TOKEN") or each for each in found] == ["a", {"error": "no such word"}, "c"]

    def test_of_a_model_that_is_not_decoupled(self, server):
        """Its error is the one event, and the answer of generate."""
        assert stream(server, "echo", IN=1, fail=True) == (500, [{"error": "as asked"}])
        assert generate(server, "echo", IN=1, fail=True) == (500, {"error": "as asked"})

    def test_of_a_request(self, server):
        """A request that is refused is no stream."""
        for document in ({}, {"PROMPT": 1}, {"PROMPT": ["a", "b"]}, {"PROMPT": "a", "x": None}):
            answer = server.request("POST", "/v2/models/tokens/generate_stream", json.dumps(document))
            assert (answer.status, answer.headers["Content-Type"]) == (400, "application/json")
            assert list(json.loads(answer.body)) == ["error"]
        assert server.request("POST", "/v2/models/nobody/generate_stream", "{}").status == 404
        assert server.request("GET", "/v2/models/tokens/generate_stream").status == 405
        duplicate = server.request("POST", "/v2/models/tokens/generate", '{"PROMPT": "a", "PROMPT": "b"}')
        assert (duplicate.status, json.loads(duplicate.body)["error"]) == (
            400, "[request id: <id_unknown>] input 'PROMPT' already exists in request",
        )  # fmt: skip

    def test_death(self, tmp_path, model, serve, wait_until):
        """A stream whose model dies ends with why, and the connection goes on; so does the model."""
        model("tokens", TOKENS, STREAMING)
        server = serve()
        with server.connect() as sock, sock.makefile("rb") as file:
            sock.sendall(post("/v2/models/tokens/generate_stream", {"PROMPT": "a b c", "dies_at": 2}))
            status, _, body = read_answer(file)
            first, second, last = events(body)
            assert (status, first["TOKEN"], second["TOKEN"]) == (200, "a", "b")
            assert "Stub process 'tokens_0' is not healthy." in last["error"]
            wait_until(server.is_ready)
            sock.sendall(post("/v2/models/tokens/generate", {"PROMPT": "a"}))
            assert read_answer(file)[0] == 200


class TestGenerate:
    def test_one_response(self, server):
        """A model that makes one response can be used without a stream, decoupled or not."""
        assert generate(server, "tokens", id="7", PROMPT="word") == (
            200, {"id": "7", "model_name": "tokens", "model_version": "1", "TOKEN": "word", "INDEX": 0},
        )  # fmt: skip
        assert generate(server, "echo", IN=5) == (
            200, {"model_name": "echo", "model_version": "1", "size": 1, "OUT": 5},
        )  # fmt: skip

    def test_any_other_number(self, server):
        """No response is one too few, and two are one too many."""
        for prompt in ("", "a b", "a " * 1000):
            assert generate(server, "tokens", PROMPT=prompt) == (500, {"error": NOT_ONE})

    def test_says_what_an_inference_says(self, server):
        """The same request by tritonclient has the same output; a batch is made of a list where it fits."""
        array = np.arange(4, dtype=np.int64)
        assert generate(server, "echo", IN=array.tolist())[1]["OUT"] == (
            server.infer("echo", {"IN": array}).as_numpy("OUT").tolist()
        )
        assert generate(server, "batched", IN=[1, 2, 3])[1]["OUT"] == [1, 2, 3]

    def test_decoupled_models_have_no_infer(self, server):
        """tritonclient gets an error: a decoupled model has no plain inference over HTTP."""
        status, message = server.refusal("tokens", {"PROMPT": np.array([b"a"], object)})
        assert status == 501
        assert message == "HTTP end point doesn't support models with decoupled transaction policy"


class TestConnections:
    def test_requests_behind_a_stream(self, server):
        """A stream has its place among the answers of a connection, which goes on behind it."""
        infer = {"inputs": [{"name": "IN", "shape": [1], "datatype": "INT64", "data": [5]}]}
        tokens = {"PROMPT": "a b c"}
        requests = [
            post("/v2/models/echo/infer", infer),
            post("/v2/models/tokens/generate_stream", tokens),
            READY,
            post("/v2/models/tokens/generate_stream", tokens | {"fails_at": 0}),
            post("/v2/models/echo/generate", {"IN": 1}),
            post("/v2/models/tokens/generate_stream", {"PROMPT": ""}),
        ]
        with server.connect() as sock, sock.makefile("rb") as file:
            for _ in range(20):
                sock.sendall(b"".join(requests))
                found = [read_answer(file) for _ in requests]
                assert [status for status, _, _ in found] == [200, 200, 200, 404, 200, 200]
                assert [len(events(found[index][2])) for index in (1, 3, 5)] == [3, 3, 0]

    @pytest.mark.parametrize(("first", "count"), [("generate_stream", 3 * RESPONSES_AHEAD_MAX), ("generate", 1)])
    def test_streams_of_one_thread(self, model, serve, first, count):
        """A model that sends to several requests in turn is not stopped by one that is answered later over HTTP.

        The requests are sent at once, and would be executed as one batch.
        """
        model("in_turn", IN_TURN, STREAMING, PAIRS)
        counts = [count, 3 * RESPONSES_AHEAD_MAX]
        kinds = [first, "generate_stream"]
        with serve().connect() as sock, sock.makefile("rb") as file:
            asked = zip(kinds, counts, strict=True)
            sock.sendall(b"".join(post(f"/v2/models/in_turn/{kind}", {"PROMPT": "", "COUNT": n}) for kind, n in asked))
            for kind, expected in zip(kinds, counts, strict=True):
                status, _, body = read_answer(file)
                found = [json.loads(body)] if kind == "generate" else events(body)
                assert (status, [each["INDEX"] for each in found]) == (200, list(range(expected)))

    def test_old_clients(self, server):
        """A client of HTTP/1.0 reads the bare events until the connection ends."""
        with server.connect() as sock, sock.makefile("rb") as file:
            sock.sendall(post("/v2/models/tokens/generate_stream", {"PROMPT": "a b c"}, version=b"1.0"))
            status, headers, body = read_answer(file)
        assert (status, headers["connection"]) == (200, "close")
        assert "transfer-encoding" not in headers
        assert [each["TOKEN"] for each in events(body)] == ["a", "b", "c"]

    def test_connection_that_ends(self, server):
        """With `Connection: close` the connection ends behind the last chunk."""
        request = post("/v2/models/tokens/generate_stream", {"PROMPT": "a b"}, extra=b"Connection: close\r\n")
        with server.connect() as sock, sock.makefile("rb") as file:
            sock.sendall(request)
            status, headers, body = read_answer(file)
            assert file.read() == b""
        assert (status, headers["connection"], len(events(body))) == (200, "close", 2)


class TestClientsThat:
    @pytest.fixture
    def endless(self, tmp_path, model, serve):
        folder = model("endless", ENDLESS, STREAMING)
        return serve(), folder

    @pytest.mark.parametrize("talk", [True, False], ids=["talking", "silent"])
    @pytest.mark.parametrize("leave", [reset, socket.socket.close], ids=["reset", "close"])
    @pytest.mark.parametrize("what", ["generate", "generate_stream"])
    def test_leave(self, endless, wait_until, talk, leave, what):
        """The model learns that its client is gone, whether it has something to say or not, and can be used again."""
        server, folder = endless
        sock = server.connect()
        document = {"PROMPT": "", "parameters": {"talk": 1} if talk else {}}
        sock.sendall(post(f"/v2/models/endless/{what}", document))
        wait_until(lambda: (folder / "begun").exists() or (folder / "cancelled").exists())
        leave(sock)
        wait_until((folder / "cancelled").exists)
        assert server.is_ready()

    def test_stop_sending(self, endless, wait_until):
        """A client that has finished sending is considered gone; it still gets the remaining events."""
        server, folder = endless
        answer = server.say(post("/v2/models/endless/generate_stream", {"PROMPT": ""}))
        assert answer.endswith(b"\r\n\r\n0\r\n\r\n")
        wait_until((folder / "cancelled").exists)

    def test_leave_the_queue(self, endless, wait_until):
        """A request that has not begun never does, but for the few that are with the model already."""
        server, folder = endless
        request = post("/v2/models/endless/generate_stream", {"PROMPT": "", "id": "any"})
        with closing(server.connect()) as first:
            first.sendall(request)
            wait_until((folder / "begun").exists)
            waiting = [server.connect() for _ in range(40)]
            for sock in waiting:
                sock.sendall(request)
            assert server.is_ready()
            for sock in waiting:
                reset(sock)
            assert server.is_ready()
        with server.connect() as last:
            last.sendall(request.replace(b'"any"', b'"end"'))
            wait_until(lambda: "end" in (folder / "executed").read_text())
        assert len((folder / "executed").read_text().split()) <= 10

    def test_stay_to_the_end(self, model, serve, wait_until, with_limits):
        """A server that exits waits for a stream up to its time limit; then the client gets the end."""
        model("endless", ENDLESS, STREAMING)
        patient = with_limits(listeners, LAST_WORDS_S_MAX=LIMIT_S)
        server = serve("--exit-timeout-secs=1", wrapper=patient)
        connection, response = open_stream(server, "endless", PROMPT="", talk=True)
        with closing(connection):
            read_event(response)
            stub = server.stub("endless_0")
            server.process.terminate()
            # The client does not read until then: the server still has the last events when the model is gone.
            wait_until(lambda: not stub.is_alive())
            last = events(response.read())[-1]
        assert "Stub process 'endless_0' is not healthy." in last["error"]
        assert server.wait_exit() == 0

    @pytest.mark.parametrize("leave", [reset, socket.socket.close], ids=["reset", "close"])
    def test_leave_a_plain_inference(self, tmp_path, model, serve, wait_until, leave):
        """The model learns it there as well."""
        folder = model("patient", PATIENT)
        server = serve()
        tensor = {"name": "IN", "shape": [1], "datatype": "INT64", "data": [5]}
        sock = server.connect()
        sock.sendall(post("/v2/models/patient/infer", {"inputs": [tensor]}))
        wait_until((folder / "begun").exists)
        leave(sock)
        wait_until((folder / "cancelled").exists)
        assert server.is_ready()

    def test_read_slowly(self, server, wait_until):
        """A model waits for its client: it has sent only as much as fits between the two."""
        sent = server.log_path.parent / "large" / "sent"
        sent.unlink(missing_ok=True)
        connection, response = open_stream(server, "large", PROMPT="", COUNT=1024)
        with closing(connection):
            read_event(response)
            wait_until(sent.exists)
            for _ in range(200):  # time enough for all of it, for a model that does not wait
                assert server.is_ready()
            assert sent.stat().st_size < 300
            for index in range(1, 400):
                found = read_event(response)
                assert (found["INDEX"], len(found["TOKEN"])) == (index, MIB)
            assert response.read() == b""

    def test_do_not_read(self, server, wait_until):
        """Others are served meanwhile, and nothing is left of them when they are gone."""
        sockets = [server.connect() for _ in range(5)]
        for sock in sockets:
            sock.sendall(post("/v2/models/large/generate_stream", {"PROMPT": "", "COUNT": 64}))
        assert len(stream(server, "tokens", PROMPT="a b c")[1]) == 3
        for sock in sockets:
            reset(sock)
        assert len(stream(server, "large", PROMPT="", COUNT=1)[1]) == 400
