# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Calls that a model with a response cache answers with what was prepared for the same message."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from tritonclient.grpc import service_pb2

from pyruntime.runtime.caching.answers import REQUEST_BYTES_MAX
from pyruntime.runtime.frontends.grpc.call import SHUTTING_DOWN
from pyruntime.runtime.inference.intake import ID_LENGTH_MAX

from ..prepared_answers import Answers

OK = (0, "")


@pytest.fixture
def answers(server):
    """Those of model "m"."""
    server.model.answers = Answers()
    return server.model.answers


@pytest.fixture(autouse=True)
def _balanced(server):
    """No call leaves requests or memory behind."""
    yield
    assert server.state.in_flight == 0
    assert server.memory.live == 0


@pytest.fixture(params=[False, True], ids=["apart", "at once"])
def dial(dial, request):
    """Opens a connection of a client that sends the head and the message of a call at once, or one behind the other."""

    def dial_one():
        peer = dial()
        peer.sends_at_once = request.param
        return peer

    return dial_one


def infer(peer, request, path=None, **headers):
    """The response to a call that succeeds."""
    answer = peer[peer.call(path or peer.INFER, request, **headers)]
    assert (answer.status, answer.is_over) == (OK, True)
    ((_, message),) = answer.messages
    return service_pb2.ModelInferResponse.FromString(message)


def test_repeated(dial, ask, server, answers):
    """The model does not see it, and the client sees no difference, but for the id of its own request."""
    peer = dial()
    first = infer(peer, ask(1.0, 2.0, id="first"))
    for id in ("", "second", "first", "ü" * 100):
        again = infer(peer, ask(1.0, 2.0, id=id))
        assert again.id == id
        again.id = "first"
        assert again == first
    assert (answers.found, server.instance.released) == (4, 1)


def test_what_makes_a_difference(dial, ask, server, answers):
    """Contents, shapes, parameters and outputs; an id that is refused, and contents that are not raw."""
    peer = dial()
    variants = [ask(1.0, 2.0), ask(2.0, 1.0), ask(1.0), ask(1.0, 2.0)]
    variants[3].parameters["a"].int64_param = 1
    for request in variants:
        infer(peer, request)
    assert (answers.found, len(answers.kept)) == (0, 4)
    assert infer(peer, ask(1.0, 2.0, raw=False)).raw_output_contents == infer(peer, ask(1.0, 2.0)).raw_output_contents
    assert (answers.found, len(answers.kept)) == (1, 4)
    status, message = peer[peer.call(peer.INFER, ask(1.0, 2.0, id="x" * (ID_LENGTH_MAX + 1)))].status
    assert (status, "the id of the request has" in message, answers.found) == (3, True, 1)


def test_what_is_refused(dial, ask, answers):
    """A timeout, an id and a message that cannot be read; an unknown model."""
    peer = dial()
    for _ in range(3):
        infer(peer, ask(1.0, 2.0))
    request = ask(1.0, 2.0).SerializeToString()
    calls = [
        (request, {"grpc_timeout": "soon"}),
        (b"\x1a\x01\xff" + request, {}),
        (b"\x07" + request, {}),
        (ask(1.0, 2.0, model="none"), {}),
        (request, {"grpc_timeout": "0n"}),
        (request, {}),
    ]
    found = [peer[peer.call(peer.INFER, message, **headers)].status[0] for message, headers in calls]
    assert (found, answers.found) == ([13, 13, 13, 5, 0, 0], 4)


def test_message_behind_that_of_another_call(dial, ask, answers):
    """The calls are told apart."""
    peer = dial()
    for _ in range(2):
        infer(peer, ask(1.0))
    first = peer.call(peer.INFER, ended=False)
    peer.pump()
    second = peer.call(peer.INFER, ended=False)
    peer.send(first, ask(1.0, id="first"), ended=True)
    peer.send(second, ask(1.0, id="second"), ended=True)
    for stream, id in ((first, "first"), (second, "second")):
        ((_, message),) = peer[stream].messages
        assert service_pb2.ModelInferResponse.FromString(message).id == id
    assert answers.found == 3


def test_same_bytes(dial, ask, server, answers):
    """With and without prepared answers, for all ids and contents."""
    ids = ["", "a", "b", "\u00fc" * 300, "x" * ID_LENGTH_MAX]
    requests = [ask(*contents, id=id) for contents in ([], [1.0], [1.0, 2.0]) for id in ids] * 3
    sent = []
    for server.model.answers in (None, answers):
        peer = dial()
        streams = [peer.call(peer.INFER, request) for request in requests]
        sent.append([(peer[stream].head, peer[stream].data, peer[stream].trailers) for stream in streams])
    assert sent[0] == sent[1]
    assert answers.found == len(requests) - 3


def test_contents_divided_otherwise(dial, ask, answers):
    """The same bytes in other raw contents are not the same request."""
    peer = dial()
    request = ask(1.0, 2.0)
    infer(peer, request)
    (contents,) = request.raw_input_contents
    request.raw_input_contents[:] = [contents[:4], contents[4:]]
    assert peer[peer.call(peer.INFER, request)].status[0] == 3
    assert answers.found == 0


def test_not_prepared(dial, ask, server, answers):
    """Long messages, those of streams, and those with a load report; nor are they answered by what is prepared."""
    peer = dial()
    infer(peer, ask(*[1.0] * (REQUEST_BYTES_MAX // 4)))
    infer(peer, ask(1.0), **{"endpoint-load-metrics-format": "text"})
    peer.call(peer.STREAM, ask(1.0))
    assert answers.kept == {}
    for _ in range(3):
        infer(peer, ask(1.0))
    infer(peer, ask(1.0), **{"endpoint-load-metrics-format": "text"})
    ((_, message),) = peer[peer.call(peer.STREAM, ask(1.0))].messages
    assert service_pb2.ModelStreamInferResponse.FromString(message).infer_response.outputs
    assert (len(answers.kept), answers.found) == (1, 2)


def test_model_without_a_cache(dial, ask, server, answers):
    """It may take the place of one with a cache."""
    peer = dial()
    for server.model.answers in (answers, answers, answers, None):
        infer(peer, ask(1.0))
    assert (answers.found, server.instance.released) == (2, 2)


def test_compressed_responses(dial, ask, server, answers):
    """Where the server compresses responses it makes each of them."""
    server.state.settings = replace(server.state.settings, grpc_compression_level="low")
    peer = dial()
    infer(peer, ask(1.0))
    assert answers.kept == {}


def test_traced(dial, ask, server, answers):
    """A trace has the whole way of a request."""
    peer = dial()
    for _ in range(3):
        infer(peer, ask(1.0))
    server.trace_with(SimpleNamespace(active=True, sample=lambda *_: None))
    infer(peer, ask(1.0))
    assert answers.found == 2


def test_logged(dial, ask, server, answers, caplog):
    """The log has every call if it is to."""
    peer = dial()
    for _ in range(3):
        infer(peer, ask(1.0))
    server.state.log_settings.update({"log_verbose_level": 1})
    with caplog.at_level("DEBUG", "pyruntime"):
        infer(peer, ask(1.0))
    assert answers.found == 3
    assert "gRPC call: /inference.GRPCInferenceService/ModelInfer ended" in caplog.text


def test_model_that_does_not_serve(dial, ask, server, answers):
    """Its prepared answers are not sent."""
    peer = dial()
    for _ in range(3):
        infer(peer, ask(1.0))
    server.state.exiting = True
    assert peer[peer.call(peer.INFER, ask(1.0))].status == (14, SHUTTING_DOWN)
    assert answers.found == 2
