# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The responses that may be sent for a request, its end, Triton's messages, and the order of threads."""

import gc
import threading

import pytest

from pyruntime.stub.host import Host
from pyruntime.stub.pb_utils import InferenceResponse, TritonModelException
from pyruntime.stub.pb_utils.sender import InferenceResponseSender
from pyruntime.stub.streams import FINAL, Stream
from tests.patience import PATIENCE_S

CLOSED = r"^Unable to send response\. Response sender has been closed\.$"
FLAG = r"^Unable to send response\. Unsupported flag provided\.$"
NOTHING = r"^Inference Response object must be provided when the response flags is set to zero\.$"
ONLY_ONE = r"^Unable to send response\. Non-decoupled model cannot send more than one response\.$"
NO_RESPONSE_YET = (
    r"^Unable to send response\. Non-decoupled model cannot send complete final before sending a response\.$"
)
WANTED = {"OUT"}


class Server(Host):
    """Notes what is sent."""

    def __init__(self):
        self.sent = []
        self.lost = []
        self.cancelled = set()

    def respond(self, serial, response, wanted, final):
        assert wanted is WANTED
        self.sent.append((serial, response, final))

    def forgotten(self, serial, warning):
        self.lost.append(serial)

    def is_cancelled(self, serial):
        return serial in self.cancelled


@pytest.fixture
def server():
    return Server()


def stream(server, decoupled=False):
    return Stream(server, 7, WANTED, decoupled, threading.RLock())


@pytest.fixture
def plain(server):
    return stream(server)


@pytest.fixture
def decoupled(server):
    return stream(server, decoupled=True)


A, B = InferenceResponse(), InferenceResponse()


class TestPlain:
    """Of a model that is not decoupled."""

    def test_one_response(self, server, plain):
        """One response may be sent, and may be the last word."""
        plain.send(A, FINAL)
        assert server.sent == [(7, A, True)]
        assert plain.closed

    def test_the_end_alone(self, server, plain):
        """The end may follow the response on its own."""
        plain.send(A, 0)
        assert not plain.closed
        plain.send(None, FINAL)
        assert server.sent == [(7, A, False), (7, None, True)]
        assert plain.closed

    @pytest.mark.parametrize("flags", [0, FINAL])
    def test_two_responses(self, server, plain, flags):
        """A second response is one too many."""
        plain.send(A, 0)
        with pytest.raises(TritonModelException, match=ONLY_ONE):
            plain.send(B, flags)
        assert server.sent == [(7, A, False)]
        assert not plain.closed

    def test_the_end_before_a_response(self, server, plain):
        """There has to be a response."""
        with pytest.raises(TritonModelException, match=NO_RESPONSE_YET):
            plain.send(None, FINAL)
        assert server.sent == []
        plain.send(A, FINAL)

    @pytest.mark.parametrize(("response", "flags"), [(B, 0), (B, FINAL), (None, FINAL)])
    def test_after_the_end(self, server, plain, response, flags):
        """After the last word there is no other."""
        plain.send(A, FINAL)
        with pytest.raises(TritonModelException, match=CLOSED):
            plain.send(response, flags)
        assert len(server.sent) == 1


class TestDecoupled:
    def test_any_number(self, server, decoupled):
        """Any number of responses, the last with the last word or before it."""
        decoupled.send(A, 0)
        decoupled.send(B, 0)
        decoupled.send(A, FINAL)
        assert server.sent == [(7, A, False), (7, B, False), (7, A, True)]

    def test_none_at_all(self, server, decoupled):
        """A decoupled request may have no response at all."""
        decoupled.send(None, FINAL)
        assert server.sent == [(7, None, True)]

    @pytest.mark.parametrize(("response", "flags"), [(B, 0), (B, FINAL), (None, FINAL)])
    def test_after_the_end(self, server, decoupled, response, flags):
        """After the last word there is no other."""
        decoupled.send(None, FINAL)
        with pytest.raises(TritonModelException, match=CLOSED):
            decoupled.send(response, flags)
        assert len(server.sent) == 1


@pytest.mark.parametrize("is_decoupled", [False, True])
class TestEither:
    @pytest.mark.parametrize("flags", [2, 3, -1, None, "1", 0.5])
    @pytest.mark.parametrize("response", [A, None])
    def test_another_flag(self, server, is_decoupled, flags, response):
        """There are two flags, and nothing else is checked before them."""
        made = stream(server, is_decoupled)
        with pytest.raises(TritonModelException, match=FLAG):
            made.send(response, flags)
        assert server.sent == []
        assert not made.closed

    def test_nothing(self, server, is_decoupled):
        """To send nothing and not to end is no message, before the end and after it."""
        made = stream(server, is_decoupled)
        with pytest.raises(TritonModelException, match=NOTHING):
            made.send(None, 0)
        made.send(A, FINAL)
        with pytest.raises(TritonModelException, match=NOTHING):
            made.send(None, 0)
        assert len(server.sent) == 1

    def test_is_cancelled(self, server, is_decoupled):
        """A sender can read whether its request is cancelled."""
        made = stream(server, is_decoupled)
        assert not made.is_cancelled()
        server.cancelled.add(7)
        assert made.is_cancelled()

    def test_end(self, server, is_decoupled):
        """A request that is answered otherwise takes nothing more."""
        made = stream(server, is_decoupled)
        assert made.end()
        assert not made.end()
        with pytest.raises(TritonModelException, match=CLOSED):
            made.send(A, FINAL)
        assert server.sent == []

    def test_end_after_the_last_word(self, server, is_decoupled):
        """A request that a sender has answered cannot be answered otherwise."""
        made = stream(server, is_decoupled)
        made.send(A, FINAL)
        assert not made.end()

    def test_begin(self, server, is_decoupled):
        """After execute, senders must answer the requests that are still open."""
        assert stream(server, is_decoupled).begin()
        made = stream(server, is_decoupled)
        made.send(A, FINAL)
        assert not made.begin()

    def test_fail(self, server, is_decoupled):
        """A request that fails ends with one error."""
        made = stream(server, is_decoupled)
        made.fail("ValueError: no")
        made.fail("ValueError: again")
        ((serial, response, final),) = server.sent
        assert (serial, final) == (7, True)
        assert response.error().message() == "ValueError: no"
        with pytest.raises(TritonModelException, match=CLOSED):
            made.send(A, 0)

    def test_fail_after_the_last_word(self, server, is_decoupled):
        """A request whose final response was sent cannot fail."""
        made = stream(server, is_decoupled)
        made.send(A, FINAL)
        made.fail("ValueError: no")
        assert len(server.sent) == 1


class TestForgotten:
    """A request that cannot be answered any more ends."""

    def test_without_a_response(self, server):
        """Its client gets an error that names the model's fault."""
        stream(server).begin()
        gc.collect()
        ((_, response, final),) = server.sent
        assert final
        assert response.error().message() == "the model has let go of the request without a response"
        assert server.lost == [7]

    def test_with_the_response_but_not_the_end(self, server):
        """The client gets the response that was sent, and the end."""
        made = stream(server)
        made.begin()
        made.send(A, 0)
        del made
        gc.collect()
        assert server.sent == [(7, A, False), (7, None, True)]
        assert server.lost == [7]

    def test_of_a_decoupled_model(self, server):
        """There, to end without a response is no failure."""
        stream(server, decoupled=True).begin()
        gc.collect()
        assert server.sent == [(7, None, True)]
        assert server.lost == [7]

    def test_after_the_last_word(self, server):
        """A sender may be dropped after the final response."""
        made = stream(server)
        made.begin()
        made.send(A, FINAL)
        del made
        gc.collect()
        assert len(server.sent) == 1
        assert server.lost == []

    def test_before_execute_has_returned(self, server):
        """A sender may be dropped before execute returns: execute may still return the response."""
        stream(server)
        made = stream(server)
        made.send(A, 0)
        del made
        gc.collect()
        assert server.sent == [(7, A, False)]
        assert server.lost == []

    def test_that_was_answered_otherwise(self, server):
        """A request that execute has answered is not forgotten."""
        made = stream(server)
        made.begin()
        made.end()
        del made
        gc.collect()
        assert server.sent == []
        assert server.lost == []

    def test_while_a_sender_is_left(self, server):
        """As long as there is one sender nothing is forgotten."""
        made = stream(server)
        made.begin()
        senders = [InferenceResponseSender(made), InferenceResponseSender(made)]
        del made
        senders.pop()
        gc.collect()
        assert server.sent == []
        senders.pop()
        gc.collect()
        assert len(server.sent) == 1


class TestThreads:
    def test_only_one_has_the_last_word(self, server):
        """Of many threads that want to say the last word one does."""
        for _ in range(50):
            made = stream(server, decoupled=True)
            barrier = threading.Barrier(4)
            said = []

            def say(made=made, barrier=barrier, said=said):
                barrier.wait(PATIENCE_S)
                try:
                    made.send(None, FINAL)
                except TritonModelException:
                    return
                said.append(1)

            threads = [threading.Thread(target=say) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE_S)
            assert said == [1]
        assert server.sent == [(7, None, True)] * 50

    @pytest.mark.parametrize("by", ["the last word", "an end"])
    def test_nothing_follows_the_last_word(self, server, by):
        """A response that one thread is about to send either comes before the last word of another, or not at all."""
        made = stream(server, decoupled=True)
        sending, go_on = threading.Event(), threading.Event()
        said = []
        real = server.respond

        def respond(serial, response, wanted, final):
            if response is A:
                sending.set()
                assert go_on.wait(PATIENCE_S)
            real(serial, response, wanted, final)

        def end():
            made.send(None, FINAL) if by == "the last word" else made.end()
            said.append(len(server.sent))

        server.respond = respond
        sender = threading.Thread(target=lambda: made.send(A, 0))
        sender.start()
        assert sending.wait(PATIENCE_S)
        other = threading.Thread(target=end)
        other.start()
        other.join(0.2)  # it must not get ahead; if it does, it has by then
        go_on.set()
        sender.join(PATIENCE_S)
        other.join(PATIENCE_S)
        assert server.sent[0] == (7, A, False)
        assert said == [len(server.sent)]


class TestSender:
    def test_of_a_request_that_the_model_made(self):
        """Triton's words, exactly."""
        sender = InferenceResponseSender(None)
        message = r"^Unable to send response\. Response sender has no reference to the decoupled state of the model\.$"
        with pytest.raises(TritonModelException, match=message):
            sender.send(A)
        assert not sender.is_cancelled()

    @pytest.mark.parametrize("wrong", ["text", 5, [A], TritonModelException("no")], ids=repr)
    def test_something_else(self, plain, wrong):
        """Only a response can be sent."""
        with pytest.raises(TypeError, match=r"^response must be a pb_utils\.InferenceResponse, found "):
            InferenceResponseSender(plain).send(wrong)

    def test_by_name(self, server, plain):
        """The way models write it."""
        sender = InferenceResponseSender(plain)
        sender.send(response=A)
        sender.send(flags=FINAL)
        assert server.sent == [(7, A, False), (7, None, True)]

    def test_are_one(self, server, plain):
        """All senders of a request send to the same client."""
        InferenceResponseSender(plain).send(A, FINAL)
        with pytest.raises(TritonModelException, match=CLOSED):
            InferenceResponseSender(plain).send(A, FINAL)

    def test_is_cancelled(self, server, plain):
        """A sender sees whether anybody waits."""
        server.cancelled.add(7)
        assert InferenceResponseSender(plain).is_cancelled()
