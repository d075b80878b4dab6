# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The clients of the load run: what they send and read, and how it is counted.

Every request has a number of its own, which comes back through the model twice: as its id, and in what the model makes
of its inputs.
"""

import http.client
import itertools
import json
import select
import socket
import struct
import threading

import numpy as np

# A request that is not answered after so long is lost, in seconds.
ANSWER_S_MAX = 60.0
# Clients pause between requests, in seconds: they have to share the machine with the server.
PAUSE_S = 0.002
PROBLEMS_SHOWN_MAX = 5

DTYPES = {"BYTES": np.object_, "UINT8": np.uint8, "INT32": np.int32, "INT64": np.int64, "FP32": np.float32}
DATATYPES = {np.dtype(dtype): datatype for datatype, dtype in DTYPES.items()}


class Wrong(Exception):
    """An answer is not that to the request, or is not what the model makes of it."""


class Duplicated(Exception):
    """Something is answered again."""


class Tally:
    """What has become of all requests to one model. Any thread may add to it."""

    OUTCOMES = ("answered", "failed", "cancelled", "lost", "duplicated", "wrong")

    def __init__(self):
        self.requests = 0
        self.counts = dict.fromkeys(self.OUTCOMES, 0)
        self.problems = []
        self._lock = threading.Lock()

    def begin(self):
        with self._lock:
            self.requests += 1

    def end(self, outcome, problem=""):
        with self._lock:
            self.counts[outcome] += 1
            if problem and len(self.problems) < PROBLEMS_SHOWN_MAX:
                self.problems.append(problem)

    def is_right(self):
        """Whether every request has come to one of the ends that it may come to."""
        return self.requests == sum(self.counts[each] for each in self.OUTCOMES[:3])


class Client(threading.Thread):
    """Sends requests of one kind to one model, one after the other, over a connection of its own."""

    numbers = itertools.count(1)

    def __init__(self, port, model, tally, act, stop, pause_s=PAUSE_S):
        """`act` is one of the functions of load_requests.py; `stop` an event."""
        super().__init__(name=f"{act.__name__} {model}")
        self.model = model
        self._port = port
        self._tally = tally
        self._act = act
        self._stop_event = stop
        self._pause_s = pause_s
        self._connection = None

    def run(self):
        while not self._stop_event.wait(self._pause_s):
            self.once()
        self.hang_up()

    def once(self):
        """One request; whatever comes of it is counted."""
        number = next(self.numbers)
        self._tally.begin()
        try:
            outcome, problem = self._act(self, number), ""
        except Duplicated as exc:
            outcome, problem = "duplicated", str(exc)
        except (OSError, http.client.HTTPException) as exc:
            outcome, problem = "lost", f"{type(exc).__name__}: {exc}"
        except Exception as exc:
            outcome, problem = "wrong", f"{type(exc).__name__}: {exc}"
        if problem:
            self.hang_up()
        self._tally.end(outcome, problem and f"request {number} to {self.model}: {problem}")

    def hang_up(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def connect(self):
        """See to a connection; one that there was must have nothing to say."""
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S_MAX)
            self._connection.connect()
            self._connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if select.select([self._connection.sock], [], [], 0)[0]:
            raise Duplicated("the connection has more to say, or was closed, after the last answer was complete")

    def send(self, path, body, headers=None):
        """Send a request to the model."""
        self.connect()
        self._connection.request("POST", f"/v2/models/{self.model}/{path}", body, headers or {})

    def get(self, path):
        """The status of what is at a path; its body is read and forgotten."""
        self.connect()
        self._connection.request("GET", path)
        with self._connection.getresponse() as response:
            response.read()
            return response.status

    def infer(self, number, arrays, outputs=()):
        """One inference; (status, document, {output: array})."""
        self.send("infer", *encode(number, arrays, outputs))
        with self._connection.getresponse() as response:
            body = response.read()
            return response.status, *decode(body, response.headers.get("Inference-Header-Content-Length"))

    def answer(self, number, arrays, outputs=()):
        """The outputs of an inference that must succeed, and must be that of this request."""
        status, document, found = self.infer(number, arrays, outputs)
        if status != 200:
            raise Wrong(f"{status} {document}")
        expect("the id", document.get("id"), str(number))
        if "ID" in found:
            for each in found["ID"].reshape(-1):
                expect("the id that the model returned", each, str(number).encode())
        return found

    def events(self, number, **document):
        """The events of a stream, and the status with the first of them. The end of the stream must be one."""
        self.send("generate_stream", json.dumps({"id": str(number), **document}))
        with self._connection.getresponse() as response:
            for line in response:
                if line.startswith(b"data: "):
                    yield response.status, json.loads(line[6:])
                elif line != b"\n":
                    raise Wrong(f"a stream has the line {line!r}")


def expect(what, found, expected):
    if found != expected:
        raise Wrong(f"{what} is {found!r}, and should be {expected!r}")


# The protocol.


def encode(number, arrays, outputs=()):
    """Body and headers of an inference. Arrays of objects have elements of type bytes."""
    inputs, contents = [], []
    for name, array in arrays.items():
        if array.dtype == np.object_:
            data = b"".join(struct.pack("<I", len(each)) + each for each in array.reshape(-1))
        else:
            data = array.tobytes()
        inputs.append(
            {
                "name": name,
                "datatype": DATATYPES[array.dtype],
                "shape": array.shape,
                "parameters": {"binary_data_size": len(data)},
            }
        )
        contents.append(data)
    document = {"id": str(number), "inputs": inputs, "parameters": {"binary_data_output": True}}
    if outputs:
        document["outputs"] = [{"name": name} for name in outputs]
    head = json.dumps(document).encode()
    return b"".join([head, *contents]), {"Inference-Header-Content-Length": str(len(head))}


def decode(body, length):
    """The document of a response, and its outputs."""
    end = len(body) if length is None else int(length)
    document, found = json.loads(body[:end]), {}
    for output in document.get("outputs", []):
        size = output["parameters"]["binary_data_size"]
        data, end = body[end : end + size], end + size
        if output["datatype"] == "BYTES":
            array = np.array(split(data), dtype=np.object_)
        else:
            array = np.frombuffer(data, DTYPES[output["datatype"]])
        found[output["name"]] = array.reshape(output["shape"])
    expect("the size of the body", len(body), end)
    return document, found


def split(data):
    elements = []
    while data:
        (length,) = struct.unpack_from("<I", data)
        elements.append(data[4 : 4 + length])
        data = data[4 + length :]
    return elements
