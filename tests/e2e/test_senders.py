# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Response senders of models that are not decoupled: one response, whenever it comes, and no second one."""

import json
import os
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
import tritonclient.grpc

from .harness.waiting import LIMIT_S

# Does what the request's id says, and what is refused it gives back as a parameter of the next response.
SENDERS = """
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
RELEASE_ALL = pb_utils.TRITONSERVER_REQUEST_RELEASE_ALL

def answer(array, **parameters):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], parameters=parameters)

class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.go_on = threading.Event()
        self.said = []
        self.kept = []

    def execute(self, requests):
        responses = [getattr(self, "do_" + request.request_id())(request) for request in requests]
        return None if all(each is None for each in responses) else responses

    def refused(self, sender, *arguments):
        try:
            sender.send(*arguments)
        except pb_utils.TritonModelException as exc:
            self.said.append(str(exc))
        else:
            self.said.append("not refused")

    def tell(self, name):
        with open(f"{self.folder}/{name}", "a") as file:
            file.write("x")

    def do_return(self, request):
        return answer(request.inputs()[0].as_numpy())

    def do_report(self, request):
        said, self.said = self.said, []
        return answer(request.inputs()[0].as_numpy(), said=json.dumps(said))

    def do_send(self, request):
        request.get_response_sender().send(answer(request.inputs()[0].as_numpy(), by="sender"), FINAL)

    def do_send_and_end(self, request):
        sender = request.get_response_sender()
        sender.send(answer(request.inputs()[0].as_numpy()))
        sender.send(flags=FINAL)

    def do_send_by_two_senders(self, request):
        request.get_response_sender().send(answer(request.inputs()[0].as_numpy()))
        request.get_response_sender().send(flags=FINAL)

    def do_send_an_error(self, request):
        error = pb_utils.TritonError("refused", pb_utils.TritonError.ALREADY_EXISTS)
        request.get_response_sender().send(pb_utils.InferenceResponse(error=error), FINAL)

    def do_send_unknown_output(self, request):
        sender = request.get_response_sender()
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("NOBODY", np.zeros(1))]), FINAL)

    def do_send_later(self, request):
        self.go_on.clear()
        threading.Thread(target=self.send_later, args=(request.get_response_sender(), request.inputs()[0])).start()

    def send_later(self, sender, tensor):
        self.tell("waits")
        self.go_on.wait()
        sender.send(answer(tensor.as_numpy()), FINAL)

    def do_send_by_thread(self, request):
        self.do_send_later(request)
        self.go_on.set()

    def do_release(self, request):
        self.go_on.set()
        return self.do_return(request)

    def do_return_an_error(self, request):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused"))

    def do_send_too_much(self, request):
        sender = request.get_response_sender()
        self.refused(sender, None, 0)
        self.refused(sender, answer(np.zeros(1)), 2)
        self.refused(sender, answer(np.zeros(1)), 3)
        self.refused(sender, None, FINAL)
        sender.send(answer(request.inputs()[0].as_numpy()))
        self.refused(sender, answer(np.zeros(1)))
        self.refused(sender, answer(np.zeros(1)), FINAL)
        self.refused(request.get_response_sender(), answer(np.zeros(1)), FINAL)
        sender.send(flags=FINAL)
        self.refused(sender, answer(np.zeros(1)))
        self.refused(sender, None, FINAL)

    def do_send_nonsense(self, request):
        sender = request.get_response_sender()
        for nonsense in ([], "text", pb_utils.TritonError("an error is no response")):
            try:
                sender.send(nonsense)
            except TypeError as exc:
                self.said.append(str(exc))
        sender.send(answer(request.inputs()[0].as_numpy()), FINAL)

    def do_send_for_a_call(self, request):
        call = pb_utils.InferenceRequest(model_name="senders", inputs=[])
        self.refused(call.get_response_sender(), answer(np.zeros(1)))
        assert not call.get_response_sender().is_cancelled()
        assert not call.is_cancelled()
        return self.do_return(request)

    def do_send_and_return(self, request):
        self.do_send(request)
        return answer(np.zeros(1))

    def do_return_and_send(self, request):
        self.kept.append(request.get_response_sender())
        return self.do_return(request)

    def do_send_after_the_return(self, request):
        self.refused(self.kept.pop(), answer(np.zeros(1)), FINAL)
        return self.do_report(request)

    def do_forget(self, request):
        request.get_response_sender()

    def do_ignore(self, request):
        pass

    def do_send_and_forget(self, request):
        request.get_response_sender().send(answer(request.inputs()[0].as_numpy()))

    def do_keep(self, request):
        self.kept.append(request.get_response_sender())
        self.tell("kept")

    def do_keep_the_request(self, request):
        self.kept.append(request)
        self.tell("kept")

    def do_send_by_the_kept(self, request):
        kept = self.kept.pop()
        sender = kept.get_response_sender()
        sender.send(answer(kept.inputs()[0].as_numpy()), FINAL)
        return self.do_return(request)

    def do_drop(self, request):
        self.kept.clear()
        return self.do_return(request)

    def do_send_and_raise(self, request):
        request.get_response_sender().send(answer(np.zeros(1)))
        raise ValueError("exploded")

    def do_end_and_raise(self, request):
        self.do_send(request)
        raise ValueError("exploded")

    def do_end_and_return_nonsense(self, request):
        self.do_send(request)
        return 7

    def do_send_and_return_another(self, request):
        request.get_response_sender().send(answer(request.inputs()[0].as_numpy()))
        return answer(np.zeros(1))

    def do_send_an_error_and_raise(self, request):
        error = pb_utils.TritonError("refused")
        request.get_response_sender().send(pb_utils.InferenceResponse(error=error))
        raise ValueError("exploded")

    def do_raise(self, request):
        raise ValueError("exploded")

    def do_send_and_die(self, request):
        request.get_response_sender().send(answer(np.zeros(1)))
        os.kill(os.getpid(), signal.SIGKILL)

    def do_end_and_die(self, request):
        self.do_send(request)
        os.kill(os.getpid(), signal.SIGKILL)

    def do_send_large(self, request):
        array = request.inputs()[0].as_numpy()
        request.get_response_sender().send(answer(np.arange(array[0])), FINAL)
"""
ASYNC = """
import asyncio

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL

class TritonPythonModel:
    async def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            await asyncio.sleep(0)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]), FINAL)
"""
PATIENT = "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 600000000 }"
FORGOTTEN = (500, "the model has let go of the request without a response")
RETURNED_NONE = (500, "execute returned None; is `return responses` missing?")
FAILED = "Failed to process the request(s) for model 'senders_0', message: "
INPUT = {"IN": np.array([1, 2])}


@pytest.fixture(scope="module")
def server(tmp_path_factory, write_model, serving):
    """A server of models that use senders."""
    repository = tmp_path_factory.mktemp("senders")
    write_model(repository, "senders", SENDERS)
    write_model(repository, "batches", SENDERS, more=PATIENT)
    write_model(repository, "coroutines", ASYNC)
    with serving(repository) as server:
        server.folder = repository / "senders"
        yield server


def ask(server, act, numbers=(1, 2), model="senders"):
    """The output of a request that says what to do."""
    return server.infer(model, {"IN": np.array(numbers)}, request_id=act).as_numpy("OUT").tolist()


def said(server):
    """The errors that the model has got since the last call."""
    parameters = server.infer("senders", INPUT, request_id="report").get_response()["parameters"]
    return json.loads(parameters["said"])


class TestOneResponse:
    @pytest.mark.parametrize("act", ["send", "send_and_end", "send_by_two_senders"])
    def test_in_execute(self, server, act):
        """A sender may answer in place of what execute returns, and end the request with it or after it."""
        assert ask(server, act, [3, 4]) == [3, 4]

    def test_parameters(self, server):
        """A response has its parameters, however it is sent."""
        response = server.infer("senders", INPUT, request_id="send").get_response()
        assert response["parameters"] == {"by": "sender"}
        assert response["id"] == "send"

    def test_errors(self, server):
        """An error may be sent; of a response, outputs that the configuration does not declare are dropped."""
        assert server.refusal("senders", INPUT, request_id="send_an_error") == (400, "refused")
        assert server.infer("senders", INPUT, request_id="send_unknown_output").get_response()["outputs"] == []

    def test_after_execute_has_returned(self, server, wait_until):
        """A thread may answer later; the request's inputs stay as they are until then."""
        (server.folder / "waits").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            late = clients.submit(ask, server, "send_later", [3, 4])
            wait_until((server.folder / "waits").exists)
            for number in range(100):
                assert ask(server, "return", [number, 0]) == [number, 0]
            assert not late.done()
            assert ask(server, "release") == [1, 2]
            assert late.result() == [3, 4]

    def test_by_a_request_that_is_kept(self, server, wait_until):
        """A model that keeps the request can get a sender of it at any time."""
        (server.folder / "kept").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            late = clients.submit(ask, server, "keep_the_request", [3, 4])
            wait_until((server.folder / "kept").exists)
            assert ask(server, "send_by_the_kept", [5, 6]) == [5, 6]
            assert late.result() == [3, 4]

    def test_from_a_coroutine(self, server):
        """async def execute may use senders, too."""
        assert ask(server, "", [3, 4], model="coroutines") == [3, 4]

    def test_streamed(self, server):
        """A client of generate_stream gets the one response."""
        (event,) = server.stream("senders", id="send", IN=[3, 4])
        assert event["OUT"] == [3, 4]

    def test_large(self, server):
        """Senders' responses go through shared memory, which is given back."""
        count = 1 << 18
        ask(server, "send_large", [count])
        before = server.shared_bytes()
        for _ in range(50):
            assert server.infer("senders", {"IN": np.array([count])}, request_id="send_large").as_numpy("OUT")[-1] == (
                count - 1
            )
        assert server.shared_bytes() <= before + 8 * count


class TestNoSecondOne:
    def test_messages(self, server):
        """A refused send changes nothing, and has Triton's message."""
        said(server)
        assert ask(server, "send_too_much") == [1, 2]
        nothing = "Inference Response object must be provided when the response flags is set to zero."
        flag = "Unable to send response. Unsupported flag provided."
        early = "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
        second = "Unable to send response. Non-decoupled model cannot send more than one response."
        closed = "Unable to send response. Response sender has been closed."
        assert said(server) == [nothing, flag, flag, early, second, second, second, closed, closed]

    def test_of_a_request_to_another_model(self, server):
        """A request that the model makes itself is nothing to answer."""
        said(server)
        assert ask(server, "send_for_a_call") == [1, 2]
        assert said(server) == [
            "Unable to send response. Response sender has no reference to the decoupled state of the model."
        ]

    def test_what_is_no_response(self, server):
        """Only an InferenceResponse can be sent."""
        said(server)
        assert ask(server, "send_nonsense") == [1, 2]
        assert said(server) == [
            f"response must be a pb_utils.InferenceResponse, found <class '{found}'>"
            for found in ("list", "str", "pyruntime.stub.pb_utils.errors.TritonError")
        ]

    def test_sent_and_returned(self, server):
        """The sender was first: what execute returns is dropped, with a line in the log."""
        warning = "execute returned a response to a request that its sender had answered; it is dropped"
        before = server.log.count(warning)
        assert ask(server, "send_and_return", [3, 4]) == [3, 4]
        assert ask(server, "return") == [1, 2]
        assert server.log.count(warning) == before + 1

    def test_returned_and_sent(self, server):
        """The response that execute returns closes the sender."""
        said(server)
        assert ask(server, "return_and_send", [3, 4]) == [3, 4]
        ask(server, "send_after_the_return")
        # It was said by the request that said it.
        assert said(server) == []


class TestNoResponse:
    @pytest.mark.parametrize(("act", "refusal"), [("forget", FORGOTTEN), ("ignore", RETURNED_NONE)])
    def test_forgotten(self, server, act, refusal):
        """If no response is possible any more, the client gets an error."""
        assert server.refusal("senders", INPUT, request_id=act) == refusal

    def test_forgotten_later(self, server, wait_until):
        """The client waits as long as the model keeps the sender, and no longer."""
        for keep, refusal in (("keep", FORGOTTEN), ("keep_the_request", RETURNED_NONE)):
            (server.folder / "kept").unlink(missing_ok=True)
            with ThreadPoolExecutor() as clients:
                kept = clients.submit(server.refusal, "senders", INPUT, request_id=keep)
                wait_until((server.folder / "kept").exists)
                assert ask(server, "return") == [1, 2]
                assert not kept.done()
                ask(server, "drop")
                assert kept.result() == refusal

    def test_sent_and_not_ended(self, server):
        """A response without an end is the last one, once no sender is left."""
        assert ask(server, "send_and_forget", [3, 4]) == [3, 4]


class TestExecuteFails:
    def test_before_the_end(self, server):
        """A response that was not the last one gives way to the error."""
        status, message = server.refusal("senders", INPUT, request_id="send_and_raise")
        assert status == 500
        assert message.startswith(FAILED + "ValueError: exploded")

    @pytest.mark.parametrize("act", ["end_and_raise", "end_and_return_nonsense"])
    def test_after_the_end(self, server, act):
        """A request that is over is answered already; its stub goes on."""
        assert ask(server, act, [3, 4]) == [3, 4]
        assert ask(server, "return") == [1, 2]

    def test_death_before_the_end(self, server):
        """A request fails if its stub dies before the end."""
        status, message = server.refusal("senders", INPUT, request_id="send_and_die")
        assert status == 500
        assert message.startswith("Stub process 'senders_0' is not healthy. It was lost while it ran this request: ")
        assert ask(server, "return") == [1, 2]

    def test_death_after_the_end(self, server):
        """A complete response stays valid if its stub dies."""
        assert ask(server, "end_and_die", [3, 4]) == [3, 4]
        assert ask(server, "return") == [1, 2]

    def test_death_with_a_sender_kept(self, server, wait_until):
        """A request whose execute has returned, and that is not answered, is lost with its stub."""
        (server.folder / "kept").unlink(missing_ok=True)
        with ThreadPoolExecutor() as clients:
            kept = clients.submit(server.refusal, "senders", INPUT, request_id="keep")
            wait_until((server.folder / "kept").exists)
            assert ask(server, "return") == [1, 2]
            os.kill(server.stub("senders_0").pid, signal.SIGKILL)
            status, message = kept.result()
        assert status == 500
        assert message.startswith("Stub process 'senders_0' is not healthy. It was lost while it ran this request: ")
        assert ask(server, "return") == [1, 2]


class TestGrpcStream:
    """A client of a gRPC stream gets what was sent first, as in Triton; the failure after it is in the log."""

    @staticmethod
    def answers(server, acts):
        """What a stream gets for each of these requests, in order: numbers, or a message."""
        responses = queue.Queue()
        with closing(server.grpc()) as client:
            client.start_stream(lambda result, error: responses.put((result, error)))
            for act in acts:
                tensor = tritonclient.grpc.InferInput("IN", [2], "INT64").set_data_from_numpy(INPUT["IN"])
                client.async_stream_infer("senders", [tensor], request_id=act)
            for _ in acts:
                result, error = responses.get(timeout=LIMIT_S)
                if result is not None:
                    assert result.get_response().parameters["triton_final_response"].bool_param
                yield error.message() if result is None else result.as_numpy("OUT").tolist()
            client.stop_stream()

    def test_sent_before_an_exception(self, server):
        acts = ["send_and_raise", "end_and_raise", "send_and_return_another", "send_an_error_and_raise", "send_and_die"]
        assert list(self.answers(server, [*acts, "return"])) == [[0.0], [1, 2], [1, 2], "refused", [0.0], [1, 2]]

    def test_nothing_sent_before_an_exception(self, server):
        failed, returned = self.answers(server, ["raise", "return"])
        assert failed.startswith(FAILED + "ValueError: exploded")
        assert returned == [1, 2]

    def test_counts_as_a_failure(self, server, wait_until):
        """For the statistics it is one, like any batch whose execute fails."""

        def counts():
            with closing(server.client()) as client:
                stats = client.get_inference_statistics("senders")["model_stats"][0]["inference_stats"]
            return stats["success"].get("count", 0), stats["fail"].get("count", 0)

        before = counts()
        assert list(self.answers(server, ["send_and_raise"])) == [[0.0]]
        wait_until(lambda: counts() == (before[0], before[1] + 1))


class TestBatches:
    @staticmethod
    def outcomes(server, acts):
        """The answers to eight requests of one batch."""

        def infer(act):
            try:
                return server.infer("batches", {"IN": np.array([[7]])}, request_id=act).as_numpy("OUT").tolist()
            except Exception as exc:
                return str(exc)

        assert len(acts) == 8
        with ThreadPoolExecutor(8) as clients:
            return list(clients.map(infer, acts))

    def test_mixture(self, server):
        """In one batch every request may be answered in its own way."""
        acts = [
            "return", "send", "send_and_end", "return_an_error", "send_an_error", "forget", "ignore", "send_and_return",
        ]  # fmt: skip
        assert self.outcomes(server, acts) == [
            [[7]], [[7]], [[7]], "[500] refused", "[400] refused", f"[500] {FORGOTTEN[1]}", f"[500] {FORGOTTEN[1]}",
            [[7]],
        ]  # fmt: skip

    def test_threads(self, server):
        """Some are answered by execute, others by threads of the model, whenever those get to it."""
        acts = ["return", "send_by_thread", "return", "send", "send_by_thread", "return", "send_by_thread", "return"]
        assert self.outcomes(server, acts) == [[[7]]] * 8

    def test_failure(self, server):
        """An exception of execute is the answer to the requests that have none yet."""
        found = self.outcomes(server, ["keep"] * 7 + ["end_and_raise"])
        failed = "[500] Failed to process the request(s) for model 'batches_0', message: ValueError: exploded"
        assert [each.startswith(failed) for each in found[:7]] == [True] * 7
        assert found[7] == [[7]]
