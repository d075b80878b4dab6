# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A tensor of more than 2 GiB, there and back, by a client that never holds it."""

import json
import zlib

import numpy as np

from .harness.models import ECHO

GIB = 1 << 30
BLOCK = np.random.default_rng(0).bytes((1 << 20) + 1)
COUNT = 2049  # blocks: a little more than 2 GiB, and no round number
NEEDED_BYTES = 8 * GIB

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] } ]
"""


def test_more_than_two_gibibytes(model, serve, require_memory):
    """Lengths, offsets and shapes beyond 32 bits are right all the way, and the contents come back unharmed."""
    require_memory(NEEDED_BYTES)
    size = COUNT * len(BLOCK)
    assert size > 2 * GIB
    model("large", ECHO, CONFIG)
    server = serve(f"--http-max-input-size={4 * GIB}")
    tensor = {"name": "IN", "shape": [size], "datatype": "UINT8", "parameters": {"binary_data_size": size}}
    document = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    head = (
        f"POST /v2/models/large/infer HTTP/1.1\r\nInference-Header-Content-Length: {len(document)}\r\n"
        f"Content-Length: {len(document) + size}\r\nConnection: close\r\n\r\n"
    )
    sent = received = 0
    with server.connect() as sock, sock.makefile("rb", buffering=len(BLOCK)) as stream:
        sock.sendall(head.encode() + document)
        for _ in range(COUNT):
            sock.sendall(BLOCK)
            sent = zlib.crc32(BLOCK, sent)
        assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
        headers = dict(line.decode().strip().split(": ") for line in iter(stream.readline, b"\r\n"))
        answer = json.loads(stream.read(int(headers["Inference-Header-Content-Length"])))
        assert answer["outputs"][0]["shape"] == [size]
        assert answer["outputs"][0]["parameters"] == {"binary_data_size": size}
        length = 0
        while part := stream.read(len(BLOCK)):
            received = zlib.crc32(part, received)
            length += len(part)
    assert (length, received) == (size, sent)
