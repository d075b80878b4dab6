# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Clients that speak HTTP/1.1 over a wire: politely, in pieces, all at once, without reading, or nonsense."""

import asyncio
import json
from collections import deque
from dataclasses import dataclass

from .tensors import HOP, pack, request_of, value_of
from .wires import cut

# A client that never reads goes away after this, in virtual seconds: longer than the server has patience.
UNREAD_S = 100.0
# The statuses of responses that refuse a request.
REFUSALS = {400, 404, 408, 413, 500, 501, 503, 504}
# The requests that end a connection.
FATAL = ("garbage", "stalls")


def unchunked(data, at):
    """A body in chunks that begins here, and where it ends: behind all data if it is not complete."""
    body = b""
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end], 16)
        at = end + 2 + size + 2
        if not size and at <= len(data):
            return body, at
        body += data[end + 2 : at - 2]
    return body, len(data) + 1


@dataclass(slots=True)
class Due:
    """A request whose response is due."""

    number: int
    kind: str


class HttpClient:
    """See the module. `first` is the number of its first request, and `model` what it asks for."""

    protocol = "HTTP"
    # What it sends, and how often.
    kinds = ("json", "binary", "chunked", "padded", "expects", "health", "nobody", "nonsense", "garbage", "stalls")
    weights = (8, 8, 4, 4, 2, 2, 1, 1, 1, 1)
    # How often it reads at once, slowly or never, and for how many bytes there may be room between the server and it.
    paces = (6, 2, 1)
    rooms = (1 << 20, 1 << 20, 300, 64)

    def __init__(self, world, draw, model, first):
        self._world = world
        self._draw = draw
        self._model = model
        self._first = first
        self._count = draw.randint(1, 8)
        self._is_patient = draw.random() < 0.4
        self._gap_s = draw.choice((0.0, 0.0, 0.0005, 0.02))
        # The sizes of the pieces that it sends: all at once, some bytes, one byte.
        self._piece = draw.choice((1 << 20, 1 << 20, 40, 1))
        self._piece_gap_s = draw.choice((0.0, 0.0, 0.00005, 0.002))
        self._reads = draw.choices(("at once", "slowly", "never"), self.paces)[0]
        self._half_closes = draw.random() < 0.2
        self._leaves_after_s = draw.choice((0.0, 0.0005, 0.004, 0.05)) if draw.random() < 0.2 else None
        self._wire = None
        self._data = b""
        self._due = deque()
        self._changed = asyncio.Event()
        self._is_over = False
        # Whether a response said that it is the last one.
        self._may_end = False

    async def run(self):
        """Send everything, and wait for the last response."""
        world, draw = self._world, self._draw
        self._wire = world.dial(self, draw, draw.choice(self.rooms))
        if self._leaves_after_s is not None:
            world.loop.call_later(self._leaves_after_s, self._leave)
        if self._reads == "never":
            world.loop.call_later(UNREAD_S, self._leave)
        requests = [
            Due(number, draw.choices(self.kinds, self.weights)[0])
            for number in range(self._first, self._first + self._count)
        ]
        bursts = [requests] if draw.random() < 0.3 else [[due] for due in requests]
        for burst in bursts:
            await asyncio.sleep(self._gap_s)
            if self._is_over or not await self._send(burst) or burst[-1].kind in FATAL:
                break
            if self._is_patient:
                await self._until_answered()
        if self._half_closes and not self._is_over:
            self._may_end = True
            self._wire.send(None)
        await self._until_answered()
        if not self._is_over and draw.random() < 0.7:  # others stay connected until the server ends
            self._leave()

    async def _until_answered(self):
        while self._due and not self._is_over:
            self._changed.clear()
            await self._changed.wait()

    async def _send(self, burst):
        """Send requests in pieces, up to one that ends the connection. Returns False if that ends meanwhile."""
        data = b""
        for due in burst:
            self._world.note("http sends", self._model.name, due.number, due.kind)
            data += self._request(due)
            self._due.append(due)
            if due.kind in FATAL:
                break
        for piece in cut(self._draw, data, self._piece):
            if self._is_over:
                return False
            self._wire.send(piece)
            if self._piece_gap_s:
                await asyncio.sleep(self._piece_gap_s)
        return True

    def _leave(self):
        if not self._is_over:
            self._is_over = True
            self._changed.set()
            self._wire.reset()

    # Requests.

    def _request(self, due):
        name = "nobody" if due.kind == "nobody" else self._model.name
        path = f"/v2/models/{name}/infer"
        match due.kind:
            case "health":
                return b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
            case "garbage":
                return b"POST \x00 HTTP/9\r\n\r\n"
            case "nonsense":
                return self._post(path, b"{]")
            case "binary":
                document, contents = self._document(due.number, is_binary=True)
                return self._post(path, document + contents, f"Inference-Header-Content-Length: {len(document)}\r\n")
            case "chunked":
                body, _ = self._document(due.number)
                half = len(body) // 2
                chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]))
                return self._head(path, "Transfer-Encoding: chunked\r\n") + chunks + b"0\r\n\r\n"
            case "padded":
                body, _ = self._document(due.number)
                return self._post(path, body + b" " * self._draw.randrange(600))
            case "expects":
                return self._post(path, self._document(due.number)[0], "Expect: 100-continue\r\n")
            case "stalls":
                data = self._post(path, self._document(due.number)[0])
                return data[: self._draw.randrange(1, len(data))]
        return self._post(path, self._document(due.number)[0])

    def _head(self, path, headers):
        return f"POST {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n".encode()

    def _post(self, path, body, headers=""):
        return self._head(path, f"{headers}Content-Length: {len(body)}\r\n") + body

    def _document(self, number, is_binary=False):
        """A request to the model as JSON, and the contents of its input if these follow as bytes."""
        shape, elements = self._model.shape(1, 2), 2
        tensor = {"name": "IN", "datatype": "INT64", "shape": shape}
        contents = b""
        document = {"id": str(number), "inputs": [tensor]}
        if is_binary:
            contents = pack(number, elements)
            tensor["parameters"] = {"binary_data_size": len(contents)}
            document["parameters"] = {"binary_data_output": True}
        else:
            tensor["data"] = [number] * elements
        if self._model.is_sequence:
            alone = {"sequence_id": number, "sequence_start": True, "sequence_end": True}
            document.setdefault("parameters", {}).update(alone)
        return json.dumps(document).encode(), contents

    # Responses.

    def readable(self):
        """See Wire."""
        if self._is_over or self._reads == "never":
            return
        data = self._wire.read(32 if self._reads == "slowly" else 1 << 20)
        if data:
            self._data += data
            self._parse()
            if self._reads == "slowly":
                self._world.loop.call_later(0.001, self.readable)
            return
        if self._wire.is_lost:
            self._ended()

    def _ended(self):
        """The server has hung up."""
        self._is_over = True
        self._changed.set()
        if self._due and not self._may_end and self._reads == "at once" and not self._world.is_closing:
            numbers = [due.number for due in self._due]
            self._world.ledger.violated(f"HTTP requests {numbers} are not answered, and the server hangs up")

    def _parse(self):
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._data[:end].decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            if "transfer-encoding" in headers:
                body, stop = unchunked(self._data, end + 4)
            else:
                stop = end + 4 + int(headers.get("content-length", 0))
                body = self._data[end + 4 : stop]
            if len(self._data) < stop:
                return
            self._data = self._data[stop:]
            if first != "HTTP/1.1 100 Continue":
                self._answered(int(first.split()[1]), headers, body)

    def _answered(self, status, headers, body):
        ledger = self._world.ledger
        self._world.note("http answered", status, len(body))
        if headers.get("connection") == "close":
            self._may_end = True
        if not self._due:
            ledger.violated(f"{self._model.name}: a response comes over HTTP that nobody asked for: {status} {body}")
            return
        due = self._due.popleft()
        self._changed.set()
        if status == 200 and due.kind != "health":
            self._check(due, headers, body)
        elif status != 200 and (status not in REFUSALS or due.kind == "health"):
            ledger.violated(f"HTTP request {due.number} of kind {due.kind} is answered with {status}: {body}")
        elif status != 200:
            self._refused(due, status, body)

    def _refused(self, due, status, body):
        """A request is refused in a way that is allowed."""

    def _check(self, due, headers, body):
        """The response is the one to this request."""
        size = int(headers.get("inference-header-content-length", len(body)))
        document = json.loads(body[:size])
        at = size
        values = set()
        for output in document["outputs"]:
            if "data" in output:
                values.update(output["data"])
            else:
                contents = body[at : at + output["parameters"]["binary_data_size"]]
                at += len(contents)
                values.add(value_of(contents))
        if document.get("id") != str(due.number) or any(
            value < HOP or request_of(value) != due.number for value in values
        ):
            self._world.ledger.violated(
                f"HTTP request {due.number} is answered out of order, or wrongly: {document.get('id')}, {values}"
            )
