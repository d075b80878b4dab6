# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Malformed HTTP/1.1 by a generator of random numbers. (pure)

`conversation` has the bytes of one connection, mostly with wrong framing, so that the server answers and hangs up.
`well_framed` is a meaningless request with correct framing, so that many go over one connection.
"""

from random import Random

from .documents import PATHS

METHODS = [b"GET", b"POST", b"PUT", b"get", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"", b"G\0T", b"P" * 300]
TARGETS = [
    *(path.encode() for path in PATHS),
    b"/v2/health/live", b"/v2/health/ready", b"/", b"*", b"", b"//", b"http://a/v2", b"/v2/models/\xff", b"/v2/../v2",
    b"/v2/models/%00/infer", b"/v2/models/numbers/versions/" + b"9" * 40, b"/" + b"a" * 5000,
    b"/v2 /x", b"/?" + b"=" * 90,
]  # fmt: skip
VERSIONS = [
    b"HTTP/1.1",
    b"HTTP/1.0",
    b"HTTP/0.9",
    b"HTTP/2.0",
    b"HTTP/1.10",
    b"HTTP/11",
    b"http/1.1",
    b"",
    b"HTTP/1.1 x",
]
BLANKS = [b" ", b"  ", b"\t", b"", b" \t "]
ENDS = [b"\r\n", b"\n", b"\r", b"\r\r\n", b"\0\r\n"]
LENGTHS = [b"0", b"5", b"-1", b"+5", b"0x5", b"5, 5", b"5,6", b" 5", b"5 5", b"", b"1e1", b"9" * 17, b"9" * 40, b"\xb2"]
NAMES = [b"Host", b"Content-Length", b"Transfer-Encoding", b"Expect", b"Connection", b"Upgrade", b"Content-Encoding",
         b"Inference-Header-Content-Length", b"Accept-Encoding", b"traceparent", b"TE", b"Trailer"]  # fmt: skip
VALUES = [*LENGTHS, b"x", b"chunked", b"gzip, chunked", b"chunked, gzip", b"xchunked", b"chunked, chunked", b"identity",
          b"100-continue", b"close", b"keep-alive, Upgrade", b"h2c", b"gzip", b"deflate", b"br", b"\xff\xfe",
          b"a" * 3000,
          b"00-" + b"f" * 32 + b"-" + b"0" * 16 + b"-01"]  # fmt: skip
BODIES = [
    b"", b"hello", b"{}", b"0\r\n\r\n", b"5\r\nhello\r\n0\r\n\r\n", b"5;a=b\r\nhello\r\n0\r\nA: b\r\n\r\n",
    b"5\nhello\n0\n\n", b"-5\r\nhello\r\n0\r\n\r\n", b"ffffffffffffffff\r\n", b"0x5\r\nhello\r\n",
    b"5\r\nhelloXX0\r\n\r\n",
    b"\x1f\x8b\x08\0\0\0\0\0", b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n",
    b"0\r\nContent-Length: 5\r\n\r\nhello",
    b"1;" + b"x" * 5000 + b"\r\na\r\n0\r\n\r\n", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200),
]  # fmt: skip
# Requests that proxies and servers have read differently: (headers, body).
SMUGGLED = b"GET /v2/health/ready HTTP/1.1\r\nHost: x\r\n\r\n"
SMUGGLING = [
    (b"Content-Length: 5\r\nTransfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
    (b"Transfer-Encoding: chunked\r\nContent-Length: %d" % len(SMUGGLED), b"0\r\n\r\n" + SMUGGLED),
    (b"Content-Length: 0\r\nContent-Length: %d" % len(SMUGGLED), SMUGGLED),
    (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n" + SMUGGLED),
    (b"Transfer-Encoding : chunked", b"0\r\n\r\n" + SMUGGLED),
    (b"Transfer-Encoding:\x0bchunked", b"0\r\n\r\n" + SMUGGLED),
    (b"X: a\nTransfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
    (b" Transfer-Encoding: chunked", b"0\r\n\r\n" + SMUGGLED),
    (b"Transfer-Encoding: chunked", b"0;\n\r\n\r\n" + SMUGGLED),
    (b"Host: a\r\nHost: b", SMUGGLED),
]


def _line(random: Random) -> bytes:
    parts = [
        random.choice(METHODS[:3] * 3 + METHODS),
        random.choice(TARGETS),
        random.choice(VERSIONS[:1] * 9 + VERSIONS),
    ]
    return random.choice(BLANKS[:1] * 9 + BLANKS).join(parts)


def _header(random: Random) -> bytes:
    name = random.choice(NAMES) if random.random() < 0.9 else random.randbytes(random.randrange(20))
    return name + random.choice([b": ", b":", b" : ", b":\t", b"", b":\0"]) + random.choice(VALUES)


def _head(random: Random) -> bytes:
    headers = [
        _header(random) for _ in range(random.choice([0, 1, 2, 3, 5, 300] if random.random() < 0.05 else [1, 2, 3]))
    ]
    if random.random() < 0.8:
        headers.append(b"Host: x")
    end = random.choice(ENDS[:1] * 20 + ENDS)
    return end.join([_line(random), *headers, b"", b""])


def _mutated(random: Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(changed) + 1)
        match random.randrange(4):
            case 0:
                changed[at : at + 1] = random.randbytes(1)
            case 1:
                del changed[at : at + random.randrange(1, 9)]
            case 2:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
            case _:
                changed[at:at] = changed[: random.randrange(1, 40)]
    return bytes(changed)


def well_framed(random: Random) -> bytes:
    """A request of the announced length, with an unknown path or a bad body."""
    # Names that nobody has sent before, as long as a cache would keep them.
    path = random.choice(PATHS) if random.random() < 0.5 else f"/v2/models/{random.getrandbits(2000):x}/infer"
    body = random.choice(
        [b"{", b"[]", b'{"inputs":0}', b'{"inputs":[{}]}', b"\xff", b"", b'{"a":' * 200, b"NaN", b"null"]
    )
    if random.random() < 0.3:
        body = _mutated(random, b'{"inputs":[{"name":"IN","datatype":"INT64","shape":[1],"data":[1]}]}')
    extra = random.choice([b"", b"", b"Content-Encoding: gzip\r\n", b"Inference-Header-Content-Length: 3\r\n"])
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), extra, len(body), body)


def conversation(random: Random) -> bytes:
    """All bytes of a connection. It may hold several requests, whole or not."""
    match random.randrange(6):
        case 0:
            headers, body = random.choice(SMUGGLING)
            return b"POST %b HTTP/1.1\r\nHost: x\r\n%b\r\n\r\n%b" % (random.choice(TARGETS[:13]), headers, body)
        case 1:
            return random.randbytes(random.choice([1, 10, 100, 5000]))
        case 2:
            return _mutated(random, well_framed(random))
        case 3:
            return b"".join(_head(random) + random.choice(BODIES) for _ in range(random.randrange(2, 6)))
        case _:
            text = _head(random) + random.choice(BODIES)
            return text if random.random() < 0.8 else text[: random.randrange(len(text) + 1)]
