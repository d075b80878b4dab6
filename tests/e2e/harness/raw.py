# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as bytes, for a model with one INT32 input, and a connection that returns responses as bytes."""

import json
import socket
import struct

from . import models

# A model of one input, and an output like it.
ECHO = """
backend: "{}"
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {} ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {} ] }} ]
"""


def config(backend, dims="-1", more="", **parameters):
    return ECHO.format(backend, dims, dims) + more + models.parameters(**parameters)


def body_of(values, **members):
    """(the JSON, all of the body) of a request."""
    size = 4 * len(values)
    tensor = {"name": "INPUT0", "datatype": "INT32", "shape": [len(values)], "parameters": {"binary_data_size": size}}
    document = json.dumps({"inputs": [tensor], **({"parameters": {"binary_data_output": True}} | members)}).encode()
    return document, document + struct.pack(f"<{len(values)}i", *values)


def post(model, body, *lines):
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", *lines, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def infer(model, *values, lines=(), **members):
    """The bytes of a request."""
    document, body = body_of(values, **members)
    return post(model, body, *lines, f"Inference-Header-Content-Length: {len(document)}")


def chunked(model, *values):
    """The same in chunks."""
    document, body = body_of(values)
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: x", "Transfer-Encoding: chunked"]
    lines += [f"Inference-Header-Content-Length: {len(document)}", "", ""]
    return "\r\n".join(lines).encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


def reset(sock):
    """Hang up at once, without taking leave."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Client:
    """A connection that returns responses as bytes."""

    def __init__(self, server):
        self.sock = server.connect()
        self.stream = self.sock.makefile("rb")

    def close(self):
        self.stream.close()
        self.sock.close()

    def leave(self, how):
        """Go without a word: "reset" or "close" the connection, or say only that nothing more comes ("half")."""
        if how == "half":
            self.sock.shutdown(socket.SHUT_WR)
            return
        if how == "reset":
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def send(self, *requests):
        self.sock.sendall(b"".join(requests))

    def read(self):
        """(status, head, body) of the next response."""
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = self.stream.readline()
            if not line:
                assert not head
                raise ConnectionResetError("the server has hung up")
            head += line
        lines = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        return int(head.split()[1]), head, self.stream.read(int(lines[b"content-length"]))

    def ask(self, *requests):
        """All responses to requests that are sent at a time."""
        self.send(*requests)
        return [self.read() for _ in requests]

    def teach(self, *requests, count=100):
        """Have requests known; their last responses."""
        for _ in range(count):
            answers = [self.ask(request)[0] for request in requests]
        return answers


def values_of(answer):
    status, head, body = answer
    assert status == 200, body
    lead = next(
        int(line.split()[1]) for line in head.split(b"\r\n") if line.startswith(b"Inference-Header-Content-Len")
    )
    return list(struct.unpack(f"<{(len(body) - lead) // 4}i", body[lead:]))


def counts(server, model):
    """(success, failures, inferences, executions) of a model."""
    (statistics,) = json.loads(server.request("GET", f"/v2/models/{model}/stats").body)["model_stats"]
    each = statistics["inference_stats"]
    return each["success"]["count"], each["fail"]["count"], statistics["inference_count"], statistics["execution_count"]
