# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of HTTP/1.1 as bytes: how bodies are framed, and what ends a connection.

There are no pipelined requests: Triton answers the second one sometimes only.
"""

import json

from answer_steps import Raw, case, explain

from answer_cases import reasons

BODY = json.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]}]}).encode()
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
INFER = b"POST /v2/models/variable/infer HTTP/1.1\r\nHost: x\r\n"
LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n"


def _infer(*headers, body=BODY):
    return Raw(INFER + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body)


def _live(*headers):
    return Raw(LIVE + b"".join(header + b"\r\n" for header in headers) + b"\r\n")


LENGTH = b"Content-Length: %d" % len(BODY)
CHUNKED = b"Transfer-Encoding: chunked"

CASES = [
    case("a length", _infer(LENGTH)),
    case("chunks", _infer(CHUNKED, body=CHUNKS)),
    case("many chunks", _infer(CHUNKED, body=b"".join(b"1\r\n%c\r\n" % each for each in BODY) + b"0\r\n\r\n")),
    case(
        "chunks with extensions and a trailer",
        _infer(CHUNKED, body=b"%x;a=b\r\n%b\r\n0\r\nA: b\r\n\r\n" % (len(BODY), BODY)),
    ),
    case("chunks and a length", _infer(LENGTH, CHUNKED, body=CHUNKS)),
    case("chunks and a length of 0", _infer(b"Content-Length: 0", CHUNKED, body=CHUNKS)),
    case("a chunk without a size", _infer(CHUNKED, body=b"zz\r\n" + BODY)),
    case("no length", _infer(body=b"")),
    case("a length that is a word", _infer(b"Content-Length: x")),
    case("a length that is negative", _infer(b"Content-Length: -1")),
    case("two equal lengths", _infer(LENGTH, LENGTH)),
    case("Connection: close", _live(b"Connection: close")),
    case("Expect: 100-continue", _infer(LENGTH, b"Expect: 100-continue")),
    case("HTTP/1.0", Raw(b"GET /v2/health/live HTTP/1.0\r\n\r\n")),
    case("HTTP/1.0, kept alive", Raw(b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")),
    case("no Host", Raw(b"GET /v2/health/live HTTP/1.1\r\n\r\n")),
    case("an absolute target", Raw(b"GET http://x/v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")),
    case("no HTTP", Raw(b"hello\r\n\r\n")),
    case("an unknown method", Raw(b"NOBODY /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")),
    case("HTTP/2", Raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
]

DIFFERENT = {
    reasons.TRAILERS: ("chunks with extensions and a trailer",),
    reasons.CHUNKS: ("chunks and a length", "chunks and a length of 0",),
    reasons.NO_REQUEST: ("a chunk without a size", "a length that is *", "no HTTP", "an unknown method", "HTTP/2",),
    reasons.EMPTY_BODY: ("no length",),
    reasons.TWO_LENGTHS: ("two equal lengths",),
}  # fmt: skip
CASES = explain(CASES, DIFFERENT)
