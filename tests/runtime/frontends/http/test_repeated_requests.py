# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that a model with a response cache answers with what was prepared for the same bytes."""

import gzip
import json
import struct
from types import SimpleNamespace

import pytest

from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX

from ..conftest import CONFIG
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
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
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


def test_id(server, answers):
    """A request with an id is not expected again."""
    request = post(body(id="7"))
    first, second = ask(server, request, request)
    assert (json.loads(first[2][: -len(CONTENTS)])["id"], second, answers.kept) == ("7", first, {})


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
