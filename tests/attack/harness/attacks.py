# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Every attack by its name: a function of a Target.

Most send less than 1 MB, which is what docs/explanation/security.md promises something about. The largest of them are
`long`: too much for tests that run beside others.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from ...e2e.harness import raw
from . import amplified, documents, floods, http1, http2, messages
from .bombs import MIB, Run, compressed, plain
from .clients import Target, at_once

SERVICE = http2.SERVICE
INFER, STREAM = SERVICE + "ModelInfer", SERVICE + "ModelStreamInfer"
INDEX = "/v2/repository/index"
KNOWN_BODY = b'{"inputs":[{"name":"IN","datatype":"INT64","shape":[1],"data":[1]}]}'
BLANKS = (Run(KNOWN_BODY), Run(b" ", 63 * MIB))


class Attack(NamedTuple):
    """`run` attacks. Those that are `long` are in the long version only."""

    name: str
    run: Callable[[Target], object]
    long: bool = False


@cache
def _bomb(*runs: Run, encoding: str = "gzip") -> bytes:
    return compressed(*runs, encoding=encoding)


def _call(runs: list[Run], path: str, target: Target) -> None:
    target.call(path, _bomb(*runs))


def _calls(runs: list[Run], count: int, target: Target) -> None:
    message = _bomb(*runs)
    at_once(count, lambda _: target.call(INFER, message))


def _call_plain(runs: list[Run], target: Target) -> None:
    target.call(INFER, plain(*runs), is_compressed=False)


def _post(runs: list[Run], path: str, target: Target) -> None:
    target.http(target.post(path, _bomb(*runs), "Content-Encoding: gzip"))


def _post_plain(runs: list[Run], path: str, target: Target) -> None:
    target.http(target.post(path, plain(*runs)))


def _blanks(target: Target, encoding: str = "gzip") -> bytes:
    body = _bomb(*BLANKS, encoding=encoding)
    return target.post("/v2/models/numbers/infer", body, f"Content-Encoding: {encoding}")


def _blanks_at_once(count: int, target: Target) -> None:
    request = _blanks(target)
    at_once(count, lambda _: target.http(request))


def _blanks_pipelined(count: int, target: Target) -> None:
    target.http(*[_blanks(target)] * count)


def _blanks_and_gone(count: int, target: Target) -> None:
    request = _blanks(target)
    at_once(count, lambda _: target.hang_up(request))


def _deflated(target: Target) -> None:
    target.http(_blanks(target, "deflate"))


def _members(target: Target) -> None:
    """A gzip body of very many members, most of them empty."""
    body = compressed(Run(b"")) * 40_000
    target.http(target.post("/v2/models/numbers/infer", body, "Content-Encoding: gzip"))


def _nested(target: Target) -> None:
    """gzip in gzip in gzip: no more than one layer may be taken off."""
    body = compressed(Run(compressed(Run(_bomb(*BLANKS)))))
    target.http(target.post("/v2/models/numbers/infer", body, "Content-Encoding: gzip"))


def malformed_http(count: int, target: Target) -> None:
    """So many, half of them over connections with others, the rest over connections of their own."""
    for _ in range(count // 40):
        target.http(*(http1.well_framed(target.random) for _ in range(20)))
        for _ in range(20):
            target.bytes_to(target.server.port, http1.conversation(target.random))


def malformed_grpc(count: int, target: Target) -> None:
    """So many connections, each of a few calls."""
    for _ in range(count):
        target.bytes_to(target.server.grpc_port, http2.conversation(target.random))


def _malformed_to_native(target: Target) -> None:
    """Malformed data after requests so alike that the C++ model's own thread reads their connection."""
    known = raw.infer("native", 1, 2, 3)
    for _ in range(30):
        target.http(*[known] * 20)
        client = raw.Client(target.server)
        client.teach(known, count=20)
        client.send(known, http1.conversation(target.random), known)
        client.leave(target.random.choice(["reset", "close"]))
        target.count(22 * len(known))


GRPC_BOMBS = [
    *(Attack(f"gRPC: {name}", partial(_call, runs, INFER)) for name, runs in messages.infer_bombs().items()),
    *(
        Attack(f"gRPC stream: {name}", partial(_call, messages.infer_bombs()[name], STREAM))
        for name in ("empty bytes_contents", "packed int_contents", "empty inputs")
    ),
    Attack("gRPC: raw strings", partial(_call, messages.raw_strings(), INFER)),
    Attack("gRPC stream: raw strings", partial(_call, messages.raw_strings(), STREAM)),
    *(
        Attack(f"gRPC {path.rpartition('/')[2]}", partial(_call, runs, path))
        for path, runs in messages.other_bombs().items()
    ),
    Attack(
        "gRPC: 16 bombs at once",
        partial(_calls, messages.infer_bombs()["empty bytes_contents"], 16),
    ),
    Attack(
        "gRPC: 1 MB uncompressed",
        partial(_call_plain, messages.infer_bombs(MIB - 1000)["empty bytes_contents"]),
    ),
    Attack(
        "gRPC: 400 MB of fp32_contents",
        partial(_call_plain, messages.infer_bombs(400_000_000)["packed fp32_contents"]),
        long=True,
    ),
]
INFER_DOCUMENTS = documents.documents()
# Documents of millions of elements, which a thread works on for long.
SLOW = {"empty texts", "NaN", "lists of elements", "elements without a shape"}
JSON_BOMBS = [
    *(
        Attack(f"infer: {name}", partial(_post, runs, documents.INFER[0]), long=name in SLOW)
        for name, runs in INFER_DOCUMENTS.items()
    ),
    *(
        Attack(f"{path}: {name}", partial(_post, INFER_DOCUMENTS[name], path))
        for path in documents.GENERATE
        for name in ("keys", "one key", "empty objects", "escapes", "blanks")
    ),
    *(
        Attack(f"{path}: empty objects", partial(_post, INFER_DOCUMENTS["empty objects"], path))
        for path in (*documents.SETTINGS, documents.INFER[1])
    ),
    *(
        Attack(f"{path}: 1 MB of {name}", partial(_post_plain, documents.documents(1_000_000)[name], path))
        for path in ("/v2/logging", INDEX, documents.INFER[0], documents.GENERATE[0])
        for name in ("empty objects", "keys", "depth")
    ),
]
COMPRESSION = [
    Attack("gzip: 16 bodies of blanks at once", partial(_blanks_at_once, 16)),
    Attack("gzip: 16 bodies of blanks on one connection", partial(_blanks_pipelined, 16)),
    Attack("gzip: 16 clients that hang up", partial(_blanks_and_gone, 16)),
    Attack("gzip: 100 bodies of blanks at once", partial(_blanks_at_once, 100), long=True),
    Attack("gzip: 60 bodies of blanks on one connection", partial(_blanks_pipelined, 60), long=True),
    Attack("gzip: 100 clients that hang up", partial(_blanks_and_gone, 100)),
    Attack("deflate: blanks", _deflated),
    Attack("gzip: 40 000 members", _members),
    Attack("gzip in gzip in gzip", _nested),
]
MALFORMED = [
    Attack("malformed HTTP/1.1", partial(malformed_http, 2000)),
    Attack("malformed HTTP/2", partial(malformed_grpc, 500)),
    Attack("malformed, behind known requests", _malformed_to_native),
]
FLOODS = [Attack(name, run) for name, run in floods.FLOODS.items()]
FLOODS += [Attack(name, run, long=True) for name, run in floods.LARGE_CROWDS.items()]
AMPLIFIED = [Attack(name, run, long="not read: calls" in name) for name, run in amplified.AMPLIFIED.items()]
ATTACKS = [*GRPC_BOMBS, *JSON_BOMBS, *COMPRESSION, *MALFORMED, *FLOODS, *AMPLIFIED]
