# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that a model with a response cache answers with what was prepared for the same bytes."""

import gzip
import json
import struct
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX

from ..conftest import CONFIG, Server
from ..prepared_answers import Answers

CONTENTS = struct.pack("<2f", 1, 2)


@pytest.fixture
def answers(server):
    """Those of model "m"."""
    server.model.answers = Answers()
    return server.model.answers


def body(contents=CONTENTS, is_binary=True, **more):
    """A body with binary contents, and the length of its document."""
    tensor = {"name": "IN", "datatype": "FP32", "shape": [len(contents) // 4]}
    parameters = {"parameters": {"binary_data_size": len(contents)}}
    document = json.dumps(more | {"inputs": [tensor | parameters], "parameters": {"binary_data_output": is_binary}})
    return document.encode() + contents, len(document)


def post(made, **headers):
    """The bytes of a request with what `body` returns."""
    data, length = made
    headers = {"Inference-Header-Content-Length": length, "Content-Length": len(data)} | headers
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join(["POST /v2/models/m/infer HTTP/1.1", "Host: x", *lines, "", ""]).encode() + data


def ask(server, *requests):
    """The responses, all over one connection."""
    transport = server.connect()
    for request in requests:
        transport.feed(request)
    return transport.responses()


@pytest.mark.parametrize("is_binary", [True, False])
def test_repeated(server, answers, is_binary):
    """The model does not see it, and the client sees no difference."""
    request = post(body(is_binary=is_binary))
    first, *others = ask(server, request, request, request)
    assert first[0] == 200
    assert others == [first, first]
    assert (answers.found, server.instance.released, server.state.in_flight) == (2, 1, 0)
    assert answers.sizes == [len(body(is_binary=is_binary)[0])]


def test_document_alone(server, answers):
    """A body without binary contents is repeated as well."""
    document = b'{"inputs": [{"name": "IN", "datatype": "FP32", "shape": [1], "data": [3]}]}'
    request = b"POST /v2/models/m/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(document), document)
    first, second = ask(server, request, request)
    assert json.loads(first[2])["outputs"][0]["data"] == [3]
    assert (second, answers.found) == (first, 1)


def test_in_any_pieces(server, answers):
    """It does not matter how the bytes come in."""
    request = post(body())
    transport = server.connect()
    transport.feed(request)
    for at in range(len(request)):
        transport.feed(request[at : at + 1])
    first, second = transport.responses()
    assert (second, answers.found, server.is_idle()) == (first, 1, True)


def test_order(server, answers):
    """It is sent behind the responses to earlier requests of the connection."""
    (first,) = ask(server, post(body()))
    server.instance.waits = True
    transport = server.connect()
    transport.feed(post(body(struct.pack("<f", 5))) + post(body()))
    assert (transport.responses(), answers.found) == ([], 1)
    server.instance.answer()
    assert transport.responses()[0][2][-4:] == struct.pack("<f", 5)
    assert transport.responses()[1] == first
    assert server.is_idle()


def test_what_makes_a_difference(server, answers):
    """Each byte of the body, the length of the document, and how the response may be compressed."""
    data, length = body()
    variants = [
        post((data, length)),
        post((data + b" ", length)),
        post((data, length - 1)),
        post((data[:-1] + b"\x01", length)),
        post((data, length), Accept_Encoding="gzip"),
    ]
    first = [ask(server, each)[0] for each in variants]
    second = [ask(server, each)[0] for each in variants]
    assert first == second
    assert [status for status, _, _ in first] == [200, 400, 400, 200, 200]
    assert (answers.found, len(answers.kept)) == (3, 3)
    assert gzip.decompress(first[4][2]) == first[0][2]


def test_compressed_request(server, answers):
    """Its decompressed body counts."""
    data, length = body()
    packed = gzip.compress(data)
    plain = post((data, length))
    first, second = ask(server, plain, post((packed, length), Content_Encoding="gzip"))
    assert (second, answers.found, server.is_idle()) == (first, 1, True)


@pytest.mark.parametrize("headers", [{"Connection": "close"}, {"endpoint_load_metrics_format": "text"}])
def test_other_lines(server, answers, headers):
    """A response whose head has more lines is made each time."""
    server.model.answers, kept = None, answers
    (expected,) = ask(server, post(body(), **headers))
    server.model.answers = kept
    ask(server, post(body()))
    (again,) = ask(server, post(body(), **headers))
    assert (again[0], set(again[1]), again[2]) == (200, set(expected[1]), expected[2])
    assert kept.found == 0


@pytest.mark.parametrize("is_binary", [True, False])
def test_ids(server, answers, is_binary):
    """Requests that differ in their ids have one answer, each with its own id."""
    ids = ["", "7", "8", "a longer one", "\u00fc", "7"]
    made = [body(is_binary=is_binary, id=id) for id in ids]
    server.model.answers, kept = None, answers
    expected = ask(server, *map(post, made))
    server.model.answers = kept
    assert ask(server, *map(post, made)) == expected
    assert (answers.found, len(answers.kept), server.is_idle()) == (4, 1, True)  # an id that is escaped is not found
    assert [json.loads(data[: data.rindex(b"}") + 1]).get("id", "") for _, _, data in expected] == ids


def test_too_long_id(server, answers):
    """It is refused, with whatever answer."""
    ask(server, *[post(body(id="7"))] * 2)
    ((status, _, data),) = ask(server, post(body(id="x" * (ID_LENGTH_MAX + 1))))
    assert (status, b"the id of the request has" in data, answers.found) == (400, True, 1)


def test_id_in_a_compressed_response(server, answers):
    """It is not put there."""
    requests = [post(body(id=id), Accept_Encoding="gzip") for id in "1122"]
    found = [json.loads(gzip.decompress(data)[: -len(CONTENTS)])["id"] for _, _, data in ask(server, *requests)]
    assert (found, answers.kept) == (["1", "1", "2", "2"], {})


@pytest.mark.parametrize("id", ["", "7"])
def test_body_behind_its_head(server, answers, id):
    """As libcurl sends it: an exchange for the first one, none for the others."""
    request = post(body(id=id))
    at = request.index(b"\r\n\r\n") + 4
    transport = server.connect()
    for _ in range(4):
        transport.feed(request[:at])
        exchanges = len(transport._connection.exchanges)
        transport.feed(request[at:])
    first, *others = transport.responses()
    assert (others, answers.found, exchanges, server.is_idle()) == ([first] * 3, 3, 0, True)


LONG_IDS = ["x" * ID_LENGTH_MAX, "x" * (ID_LENGTH_MAX + 1), "\u00fc" * ID_LENGTH_MAX, "x" * (2 * ID_LENGTH_MAX)]
IDS = ["", "1", "7", "a b", "\u00fc\U0001f600", "\x7f", '"', "\\", "\n", *LONG_IDS]
# What may stand before the other members of a document, as clients write an id and as only some parsers read one.
BEGINNINGS = [
    *[json.dumps({"id": id}, ensure_ascii=escapes)[1:-1] + ", " for id in IDS for escapes in (True, False)],
    *[json.dumps({"id": id}, ensure_ascii=False, separators=(",", ":"))[1:-1] + "," for id in IDS],
    *["", " ", '"id":"1","id":"2",', '"id":7,', '"id":null,', '"id":"1" ,', '"id":"1",,', '"id":"1"'],
]
ENDS = ["", ',"id":"1"', ',"id":"2"', ',"more":"\\u0069d"']


def document(beginning, end, size=8, is_binary=True):
    """The text of a document for `size` bytes of contents."""
    _, length = made = body(bytes(size), is_binary)
    members = made[0][1 : length - 1].decode()
    return ("{" + beginning + members + end + "}").encode()


def both_ways(wires, *, at_once=False, cuts=()):
    """What a server writes to a client that sends `wires`, without prepared answers and with them."""
    sent = []
    for prepared in (None, Answers()):
        server = Server()
        server.model.answers = prepared
        transport = server.connect()
        for wire in [b"".join(wires)] if at_once else wires:
            for begin, end in pairwise([0, *sorted(cuts), len(wire)]):
                transport.feed(wire[begin:end])
        assert server.is_idle()
        server.memory.close()
        sent.append(transport.sent)
    assert prepared.found
    return sent


@pytest.mark.parametrize(
    ("contents", "is_binary", "lines"),
    [
        (CONTENTS, True, {}),
        (CONTENTS, False, {}),
        (CONTENTS, True, {"Accept_Encoding": "gzip"}),
        (b'"id":"1"', True, {}),
        (b"", True, {}),
        (b"", False, {}),
    ],
)
def test_same_bytes(contents, is_binary, lines):
    """All documents, also with wrong lengths: no request has the answer to another one, whichever came before."""
    bodies = [document(beginning, end, len(contents), is_binary) for beginning in BEGINNINGS for end in ENDS]
    bodies += [b"{" + beginning.encode() + b"}" for beginning in BEGINNINGS]
    wires = [post((text + contents, len(text) + more), **lines) for text in bodies for more in (0, 1, -1, 10**6)]
    if not contents:
        wires += [post((text, None), **lines) for text in bodies]
    without, prepared = both_ways(wires * 2)
    assert without == prepared


@given(
    texts=st.lists(
        st.builds(document, st.sampled_from(BEGINNINGS[-20:]), st.sampled_from(ENDS)), min_size=1, max_size=5
    ),
    cuts=st.lists(st.integers(0, 3000), max_size=6),
    at_once=st.booleans(),
)
def test_same_bytes_in_any_pieces(texts, cuts, at_once):
    """Requests that come several times, one after another or all at once."""
    wires = [post(body()), *[post((text + CONTENTS, len(text))) for text in texts]]
    without, prepared = both_ways(wires * 3, at_once=at_once, cuts=cuts)
    assert without == prepared


def test_long_request(server, answers):
    """It goes to request memory as it comes in."""
    request = post(body(bytes(REQUEST_BYTES_MAX)))
    assert [status for status, _, _ in ask(server, request, request)] == [200, 200]
    assert (answers.kept, server.is_idle()) == ({}, True)


def trace(server):
    server.trace_with(SimpleNamespace(active=True, sample=lambda *_: None))


def stop_serving(server):
    server.state.exiting = True


def forget(server):
    server.model.answers.kept.clear()


def reload(server):
    server.model = server._serve("m", CONFIG, server.instance)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(("change", "status"), [(trace, 200), (stop_serving, 503), (forget, 200), (reload, 200)])
def test_what_ends_it(server, answers, change, status, is_new):
    """A trace, the end of the server, an evicted entry, another version: on the same connection and on a new one."""
    request = post(body())
    transport = server.connect()
    for _ in range(3):
        transport.feed(request)
    change(server)
    if is_new:
        transport = server.connect()
    transport.feed(request)
    assert transport.statuses()[-1] == status
    assert (answers.found, server.is_idle()) == (2, True)


def test_logged(server, answers, caplog):
    """The log has every request if it is to."""
    request = post(body())
    transport = server.connect()
    for _ in range(3):
        transport.feed(request)
    server.state.log_settings.update({"log_verbose_level": 1})
    with caplog.at_level("DEBUG", "pyruntime"):
        transport.feed(request)
    assert (answers.found, transport.statuses()) == (3, [200] * 4)
    assert "POST /v2/models/m/infer -> 200" in caplog.text


def test_client_that_does_not_read(server, answers):
    """Its further requests wait."""
    request = post(body())
    transport = server.connect()
    for _ in range(2):
        transport.feed(request)
    transport.stalled = True
    transport.feed(request * 3)
    assert answers.found == 2
    transport.drain()
    assert (answers.found, transport.statuses()) == (4, [200] * 5)


def test_announced_end(server, answers):
    """An answer that says that the connection ends is sent once only."""
    server.instance.waits = True
    transport = server.connect()
    transport.feed(post(body()))
    transport._connection.eof_received()
    server.instance.answer()
    ((status, headers, _),) = transport.responses()
    assert (status, headers["connection"], answers.kept) == (200, "close", {})
