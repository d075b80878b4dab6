# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""HTTP/1.1 byte by byte, by clients that are old, odd, broken or gone: none of them harms the server or the others."""

import http.client
import json
import os
import re
import shutil
import socket
import subprocess
from contextlib import suppress

import numpy as np
import pytest

from .harness.raw import reset
from .harness.waiting import LIMIT_S

A = np.arange(16, dtype=np.float32)
READY = b"GET /v2/health/ready HTTP/1.1\r\nHost: any\r\n\r\n"
MIB = 1 << 20

# Holds its requests until a file appears; says before that one has begun.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def execute(self, requests):
        open(self.folder + "/begun", "a").close()
        with open(self.folder + "/gate") as gate:
            gate.read()
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]
"""
# Answers with as many integers as the request says.
ZEROS = """
class TritonPythonModel:
    def execute(self, requests):
        counts = [request.inputs()[0].as_numpy()[0] for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(count, np.int64))]) for count in counts]
"""


def request_for(path, document, contents=b"", extra=b""):
    """An inference request, as it goes over the wire."""
    text = json.dumps(document).encode()
    lead = b"Inference-Header-Content-Length: %d\r\n" % len(text) if contents else b""
    return b"POST %b HTTP/1.1\r\nHost: any\r\n%b%bContent-Length: %d\r\n\r\n%b%b" % (
        path.encode(), lead, extra, len(text) + len(contents), text, contents,
    )  # fmt: skip


def add_sub(identifier="", extra=b""):
    """A valid binary request whose outputs are to be JSON."""
    inputs = [
        {"name": name, "shape": [16], "datatype": "FP32", "parameters": {"binary_data_size": 64}}
        for name in ("INPUT0", "INPUT1")
    ]
    document = {"id": identifier, "inputs": inputs, "outputs": [{"name": "OUTPUT0"}]}
    return request_for("/v2/models/add_sub/infer", document, A.tobytes() * 2, extra)


def counted(model, count):
    """A request for one of the models of this module."""
    tensor = {"name": "IN", "shape": [1], "datatype": "INT64", "data": [count]}
    return request_for(f"/v2/models/{model}/infer", {"inputs": [tensor], "parameters": {"binary_data_output": True}})


def answers(data):
    """The (status, headers, body) of each of the responses in `data`, which must hold nothing else."""
    found = []
    while data:
        head, separator, data = data.partition(b"\r\n\r\n")
        assert separator, head
        line, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}
        length = int(headers.get("content-length", 0))
        assert len(data) >= length
        found.append((int(re.fullmatch(r"HTTP/1\.1 (\d+) .+", line)[1]), headers, data[:length]))
        data = data[length:]
    return found


def outputs(body):
    """The output of add_sub in a JSON response."""
    return json.loads(body)["outputs"][0]["data"]


def read_answer(stream):
    """The next response of a connection, as (status, body)."""
    status = int(stream.readline().split()[1])
    length = 0
    while (line := stream.readline().strip().lower()) != b"":
        if line.startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, stream.read(length)


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    repository = tmp_path_factory.mktemp("connections")
    write_model(repository, "zeros", ZEROS)
    with serving(repository) as server:
        yield server


def test_requests_in_any_pieces(samples):
    """A request is the same wherever its bytes are cut."""
    whole = add_sub()
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for cut in range(1, len(whole), 7):
            sock.sendall(whole[:cut])
            sock.sendall(whole[cut:])
            status, body = read_answer(stream)
            assert (status, outputs(body)) == (200, (2 * A).tolist())
        for byte in whole:
            sock.sendall(bytes([byte]))
        assert read_answer(stream)[0] == 200


def test_pipelined_requests_are_answered_in_order(samples):
    """Requests sent without waiting for answers are answered in their order, more of them than are served at a time."""
    count = 300
    requests = [add_sub(str(number)) if number % 3 else READY for number in range(count)]
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(b"".join(requests))
        found = [read_answer(stream) for _ in range(count)]
    assert [status for status, _ in found] == [200] * count
    identifiers = [json.loads(body)["id"] if body else "" for _, body in found]
    assert identifiers == [str(number) if number % 3 else "" for number in range(count)]


def test_refusals_stand_in_the_same_order(samples):
    """Errors wait for the responses before them, and a bad request ends the connection."""
    unknown = add_sub().replace(b"add_sub", b"nothing", 1)
    found = answers(samples.say(add_sub() + unknown + add_sub() + b"garbage\r\n\r\n" + add_sub()))
    assert [status for status, _, _ in found] == [200, 404, 200, 400]
    assert found[-1][1]["connection"] == "close"


@pytest.mark.parametrize(
    ("garbage", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(64)) + b"\r\n\r\n", 400),
        (b"hello\r\n\r\n", 400),
        (b"GET /v2 HTTP/9.9\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n", 400),
        (b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nContent-Length: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n", 400),
        (b"CONNECT any:80 HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"GET /v2 HTTP/1.1\r\nlong: " + b"x" * (70 << 10) + b"\r\n\r\n", 431),
        (b"x" * (70 << 10), 431),
    ],
)
def test_garbage(samples, garbage, status):
    """Data that is not HTTP gets one error and the end of the connection."""
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(garbage)
        (found,) = answers(stream.read())
    assert found[0] == status
    assert list(json.loads(found[2])) == ["error"]
    assert samples.is_ready()


def test_large_random_garbage(samples):
    """Any amount of nonsense is cut off."""
    noise = np.random.default_rng(0).bytes(MIB)
    # To be cut off while sending is as good an answer.
    with samples.connect() as sock, suppress(OSError):
        sock.sendall(noise)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass
    assert samples.is_ready()


def test_truncated_at_every_byte(samples):
    """A client that leaves after any byte of its request has no effect on others, and its request is not answered."""
    whole = add_sub()
    executed = executions(samples, "add_sub")
    for length in range(len(whole)):
        with samples.connect() as sock:
            sock.sendall(whole[:length])
    for length in range(0, len(whole), 5):
        # The half-closed connection is closed; a partial request is never executed.
        assert [status for status, _, _ in answers(samples.say(whole[:length]))] in ([], [400])
    assert executions(samples, "add_sub") == executed
    assert samples.infer("add_sub", {"INPUT0": A, "INPUT1": A}).as_numpy("OUTPUT0").tolist() == (2 * A).tolist()


def executions(server, model):
    """How many batches a model has executed."""
    body = server.request("GET", f"/v2/models/{model}/stats").body
    return json.loads(body)["model_stats"][0]["execution_count"]


def test_memory_of_clients_that_leave_half_way(server):
    """The memory of bodies that never came in whole is used again: many of them need no more than one."""
    size = 32 * MIB
    tensor = {"name": "IN", "shape": [size // 8], "datatype": "INT64", "parameters": {"binary_data_size": size}}
    head = request_for("/v2/models/zeros/infer", {"inputs": [tensor]}, bytes(size))[: size // 2]

    def leave():
        with server.connect() as sock:
            sock.sendall(head)
            reset(sock)
        assert server.is_ready()

    for _ in range(3):
        leave()
    before = server.shared_bytes()
    for _ in range(20):
        leave()
    assert server.shared_bytes() <= before + size


def test_clients_that_do_not_read(server, wait_until):
    """Large responses that are not read are dropped with their connection, and their memory is used again."""
    count = 4 * MIB  # 32 MiB

    def leave():
        done = executions(server, "zeros")
        with server.connect() as sock:
            sock.sendall(counted("zeros", count))
            wait_until(lambda: executions(server, "zeros") > done)
            reset(sock)

    for _ in range(3):
        leave()
    before = server.shared_bytes()
    for _ in range(15):
        leave()
    assert server.shared_bytes() <= before + 8 * count
    assert server.infer("zeros", {"IN": np.array([count])}).as_numpy("OUT").nbytes == 8 * count


def test_slow_reader_gets_everything(server):
    """A large response waits for a client that reads it bit by bit, while others are served."""
    with server.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(counted("zeros", MIB) * 2)
        for _ in range(2):
            assert server.infer("zeros", {"IN": np.array([3])}).as_numpy("OUT").tolist() == [0, 0, 0]
            status, body = read_answer(stream)
            assert status == 200
            assert body.endswith(bytes(8 * MIB))


def test_client_that_leaves_before_its_answer(tmp_path, model, serve, wait_until):
    """A request whose client has left is executed all the same, and its response is dropped."""
    folder = model("gated", GATED)
    os.mkfifo(folder / "gate")
    server = serve()
    with server.connect() as sock:
        sock.sendall(counted("gated", 1))
        wait_until((folder / "begun").exists)
        reset(sock)
    (folder / "gate").write_text("")
    wait_until(lambda: executions(server, "gated") == 1)
    assert server.is_ready()


def test_half_closed_connection_is_answered(samples):
    """A client that says that it sends nothing more still gets its answer, and then the connection ends."""
    ((status, _, body),) = answers(samples.say(add_sub()))
    assert (status, outputs(body)) == (200, (2 * A).tolist())


def chunked(body, size):
    """A body in chunks, with an extension and a trailer."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x;any=thing\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\nTrailer: any\r\n\r\n"


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_chunked_body(samples, size):
    """A body may come in chunks of any size, with a JSON document or with binary contents."""
    head, _, body = add_sub().partition(b"\r\n\r\n")
    head = re.sub(rb"Content-Length: \d+$", b"Transfer-Encoding: chunked", head)
    with samples.connect() as sock, sock.makefile("rb") as stream:
        for _ in range(2):
            sock.sendall(head + b"\r\n\r\n" + chunked(body, size))
            status, answer = read_answer(stream)
            assert (status, outputs(answer)) == (200, (2 * A).tolist())


def test_expect_100_continue(samples):
    """A client that asks gets a 100 Continue, or the refusal instead."""
    whole = add_sub(extra=b"Expect: 100-continue\r\n")
    head, _, body = whole.partition(b"\r\n\r\n")
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(head + b"\r\n\r\n")
        assert stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert stream.readline() == b"\r\n"
        sock.sendall(body)
        status, answer = read_answer(stream)
        assert (status, outputs(answer)) == (200, (2 * A).tolist())


def test_expect_100_continue_of_a_refused_request(samples):
    """A client that asks first and is refused learns it without having sent its body."""
    whole = add_sub(extra=b"Expect: 100-continue\r\n").replace(b"add_sub", b"nothing", 1)
    head, _, _ = whole.partition(b"\r\n\r\n")
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(head + b"\r\n\r\n")
        assert read_answer(stream)[0] == 404


def test_old_clients(samples):
    """HTTP/1.0 and `Connection: close` get their answer, and then the end of the connection."""
    for request in (
        READY.replace(b"1.1", b"1.0"),
        READY.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        add_sub().replace(b"HTTP/1.1", b"HTTP/1.0"),
        add_sub(extra=b"Connection: close\r\n"),
    ):
        with samples.connect() as sock, sock.makefile("rb") as stream:
            sock.sendall(request)
            ((status, headers, _),) = answers(stream.read())
        assert (status, headers["connection"]) == (200, "close")


def test_old_clients_that_ask_to_stay(samples):
    """A client of HTTP/1.0 may ask for a connection that stays, and is told that it does, by errors, too."""
    extra = b"Connection: Keep-Alive\r\n"
    infer = add_sub(extra=extra).replace(b"HTTP/1.1", b"HTTP/1.0")
    live = b"GET /v2/health/live HTTP/1.0\r\n" + extra + b"\r\n"
    missing = infer.replace(b"add_sub", b"none", 1)
    with samples.connect() as sock:
        for request, status in ((infer, 200), (infer, 200), (missing, 404), (live, 200)):
            sock.sendall(request)
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            answer.read()
            assert (answer.status, answer.headers["connection"]) == (status, "keep-alive")


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v2/models/add_sub/infer"])
def test_apache_bench_that_keeps_its_connections(samples, tmp_path, path):
    """`ab -k` asks in HTTP/1.0 for connections that stay, and has all of its answers on them."""
    program = shutil.which("ab")
    if program is None:
        pytest.skip("there is no ab here: apt-get install apache2-utils")
    tensors = [{"name": name, "shape": [16], "datatype": "FP32", "data": [1] * 16} for name in ("INPUT0", "INPUT1")]
    (tmp_path / "body").write_text(json.dumps({"inputs": tensors}))
    body = ["-p", tmp_path / "body", "-T", "application/json"] if path.endswith("infer") else []
    command = [program, "-k", "-q", "-n", "200", "-c", "4", *body, f"http://127.0.0.1:{samples.port}{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    counts = dict(re.findall(r"^([\w -]+):\s+(\d+)", done.stdout, re.MULTILINE))
    assert (counts["Complete requests"], counts["Keep-Alive requests"], counts["Failed requests"]) == (
        "200",
        "200",
        "0",
    )
    assert "Non-2xx responses" not in counts


@pytest.mark.parametrize("offer", [b"h2c", b"websocket"])
def test_offers_of_other_protocols(samples, offer):
    """A request that offers to go on with another protocol is answered, with its body, and so is the next one."""
    extra = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABk\r\n" % offer
    with samples.connect() as sock, sock.makefile("rb") as stream:
        for request in (add_sub(extra=extra), add_sub(extra=extra), READY):
            sock.sendall(request)
            assert read_answer(stream)[0] == 200


def test_curl_that_prefers_http2(samples):
    """`curl --http2` offers HTTP/2 with its request, and is answered by HTTP/1.1."""
    url = f"http://127.0.0.1:{samples.port}/v2/models/add_sub/infer"
    body = add_sub().partition(b"\r\n\r\n")[2]
    length = re.search(rb"Inference-Header-Content-Length: \d+", add_sub())
    headers = ["-H", length[0].decode()] if length else []
    command = [
        "curl",
        "-sS",
        "--http2",
        "--max-time",
        str(LIMIT_S),
        "-w",
        "%{http_code} %{http_version}",
        "-o",
        "/dev/null",
    ]
    result = subprocess.run(
        [*command, *headers, "--data-binary", "@-", url], input=body, capture_output=True, check=True
    )
    assert result.stdout == b"200 1.1"


def test_connection_is_kept(samples):
    """A connection serves one request after the other, errors included."""
    with samples.connect() as sock, sock.makefile("rb") as stream:
        for request, status in ((add_sub(), 200), (add_sub().replace(b"add_sub", b"nothing", 1), 404), (READY, 200)):
            sock.sendall(request)
            assert read_answer(stream)[0] == status


def test_refused_body_is_swallowed(samples):
    """A body that is too large is read to its end, so that the client sees why, and the connection is kept."""
    size = 80 * MIB  # above the default of --http-max-input-size
    with samples.connect() as sock, sock.makefile("rb") as stream:
        sock.sendall(b"POST /v2/models/add_sub/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size)
        block = bytes(MIB)
        for _ in range(size // MIB):
            sock.sendall(block)
        status, body = read_answer(stream)
        assert status == 400
        assert "--http-max-input-size" in json.loads(body)["error"]
        sock.sendall(add_sub())
        assert read_answer(stream)[0] == 200


def test_many_connections(samples):
    """Hundreds of clients may be connected at a time, most of them silent."""
    sockets = [samples.connect() for _ in range(300)]
    try:
        for sock in sockets[::50]:
            sock.sendall(add_sub())
            with sock.makefile("rb") as stream:
                assert read_answer(stream)[0] == 200
    finally:
        for sock in sockets:
            sock.close()
