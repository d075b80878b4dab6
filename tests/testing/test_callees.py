# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that call other models: replacements for those, their calls, and the responses."""

import asyncio
import json
import threading

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.testing import InferenceError, load_model

from .conftest import DECOUPLED, IN_OUT

# Calls the model `other` and gives back what that said, or its error as text in a parameter.
CALL = """
request = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", array(requests[0]))], OPTIONS)
response = request.exec()
if response.has_error():
    error = response.error()
    return [pb_utils.InferenceResponse(parameters={"error": error.message(), "code": int(error.code())})]
outputs = [pb_utils.Tensor(each.name(), each.as_numpy()) for each in response.output_tensors()]
return [pb_utils.InferenceResponse(outputs, parameters=json.loads(response.parameters()))]
"""
# Calls the decoupled model `other` and gives back the sum of its responses.
CALL_DECOUPLED = """
request = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", array(requests[0]))])
total = 0
for response in request.exec(decoupled=True):
    for tensor in response.output_tensors():
        total += tensor.as_numpy().sum()
return [answer(total)]
"""
NOT_READY = (
    "Model other - Error when running inference: Failed for execute the inference request. Model 'other' is not ready."
)
IS_DECOUPLED = "Model other - Error when running inference: Model other is using the decoupled."


@pytest.fixture
def caller(execute):
    """Loads a model that calls another one, in place of which is what this is given."""

    def load(other, body=CALL, options="", config=IN_OUT, **more):
        return execute(body.replace("OPTIONS", options), config, callees={"other": other}, **more)

    return load


@pytest.fixture
def other(write_model):
    """The folder of a model that adds one, unless another body of its execute is given."""

    def write(
        body="return [answer(array(each) + 1) for each in requests]", config=IN_OUT, name="real", begin="def execute"
    ):
        return write_model(f"class TritonPythonModel:\n    {begin}(self, requests):\n        {body}\n", config, name)

    return write


def error_of(model):
    """The error that the model was given by the other one."""
    return model.infer({"IN": [1]}).parameters


class TestFunctions:
    def test_dict(self, caller):
        """A function gets arrays by name and returns them so; lists will do."""
        model = caller(lambda inputs: {"OUT": (inputs["IN"] + 1).tolist()})
        assert model.infer({"IN": [1, 2]})["OUT"].tolist() == [2, 3]

    def test_response(self, caller):
        """It may return a response as a model would."""
        response = pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([5]))], parameters={"a": 1})
        result = caller(lambda _: response).infer({"IN": [1]})
        assert result["OUT"].tolist() == [5]
        assert result.parameters == {"a": 1}

    @pytest.mark.parametrize(
        ("outcome", "message", "code"),
        [
            (pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND), "no", 2),
            (InferenceError("never", pb_utils.TritonError.CANCELLED), "never", 7),
            (ValueError("wrong"), "wrong", 1),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_error(self, caller, outcome, message, code):
        """An error that is returned is the response."""
        assert error_of(caller(lambda _: outcome)) == {"error": message, "code": code}

    def test_raising(self, caller):
        """An exception of the function is the cause of the call's error; it may be a failed assertion of the test."""

        def check(inputs):
            assert inputs["IN"].tolist() == [2]

        with pytest.raises(InferenceError) as caught:
            caller(check).infer({"IN": [1]})
        assert type(caught.value.__cause__) is AssertionError

    def test_nonsense(self, caller):
        """A result that is not an outcome fails the call with a message that names the model."""
        with pytest.raises(InferenceError, match="what stands in for model 'other' must return a dict of arrays"):
            caller(lambda _: 5).infer({"IN": [1]})

    def test_outputs_not_asked_for(self, caller):
        """The caller gets only the outputs that it requested."""
        model = caller(lambda _: {"OUT": [1], "X": [2]}, options="requested_output_names=['OUT']")
        assert list(model.infer({"IN": [1]}).outputs) == ["OUT"]

    def test_datatypes(self, execute):
        """Texts and BF16 go both ways."""
        ml_dtypes = pytest.importorskip("ml_dtypes")
        given = {"TEXT": np.array(["straße"]), "BF16": np.array([1.5, -0.0], ml_dtypes.bfloat16)}
        body = """
        first = pb_utils.InferenceRequest(model_name="other").exec()
        second = pb_utils.InferenceRequest(model_name="other", inputs=first.output_tensors()).exec()
        return [answer(0)]
        """
        model = execute(body, callees={"other": lambda _: given})
        model.infer({"IN": [1]})
        assert model.calls[0] == {}
        assert model.calls[1]["TEXT"].tolist() == ["straße".encode()]
        assert model.calls[1]["BF16"].dtype == ml_dtypes.bfloat16
        assert model.calls[1]["BF16"].tobytes() == given["BF16"].tobytes()


class TestCalls:
    def test_what_was_asked(self, caller):
        """A test sees every call, with all that the model said."""
        options = """
        request_id="7", correlation_id="seq", requested_output_names=["OUT"], model_version=3, flags=1, timeout=5,
        parameters={"a": 1, "b": "x"},
        """
        model = caller(lambda _: {"OUT": [1]}, options="".join(options.split()))
        model.infer({"IN": [1]})
        (call,) = model.calls
        assert call["IN"].tolist() == [1]
        assert (call.model_name, call.model_version, call.request_id, call.correlation_id) == ("other", 3, "7", "seq")
        assert (call.requested_outputs, call.flags, call.timeout) == ({"OUT"}, 1, 5)
        assert call.parameters == {"a": 1, "b": "x"}
        assert not call.decoupled
        assert not call.cancelled
        assert repr(call) == "<Call of other ['IN']>"

    def test_inputs_are_those_of_then(self, execute):
        """A call records its inputs as they were at that time: later changes of the array do not show in them."""
        body = """
        array(requests[0])[:] = 1
        request = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", array(requests[0]))])
        request.exec()
        array(requests[0])[:] = 2
        return [answer(0)]
        """
        model = execute(body, callees={"other": lambda _: {}})
        model.infer({"IN": [0]})
        assert model.calls[0]["IN"].tolist() == [1]


class TestNoSuchModel:
    def test_unknown(self, execute):
        """The message is Triton's."""
        model = execute(CALL.replace("OPTIONS", ""))
        assert error_of(model) == {"error": NOT_READY, "code": 1}
        assert len(model.calls) == 1

    def test_other_version(self, caller, other):
        """Of a model that is loaded there is one version; a function is all of them."""
        assert error_of(caller(other(), options="model_version=2")) == {"error": NOT_READY, "code": 1}

    def test_in_auto_complete(self, load, caplog):
        """There is no server yet."""
        with pytest.raises(Exception, match="this is not possible outside a model, nor before its initialize"):
            load(
                """
                class TritonPythonModel:
                    @staticmethod
                    def auto_complete_config(config):
                        pb_utils.InferenceRequest(model_name="other").exec()
                    def execute(self, requests): pass
                """
            )


class TestModels:
    def test_folder(self, caller, other):
        """A folder is loaded, and closed with the model that calls it."""
        model = caller(other())
        assert model.infer({"IN": [1, 2]})["OUT"].tolist() == [2, 3]
        assert model.calls[0]["IN"].tolist() == [1, 2]

    def test_loaded(self, caller, other):
        """A model that is loaded already stays the test's own."""
        with load_model(other()) as real:
            model = caller(real)
            assert model.infer({"IN": [1]})["OUT"].tolist() == [2]
            model.close()
            assert real.infer({"IN": [1]})["OUT"].tolist() == [2]

    def test_chain(self, caller, execute, other):
        """Models that are called may call others, and each knows its own."""
        end = execute("return [answer(array(requests[0]) * 10)]", name="end")
        middle = execute(CALL.replace("OPTIONS", ""), name="middle", callees={"other": end})
        assert caller(middle).infer({"IN": [1, 2]})["OUT"].tolist() == [10, 20]
        assert [len(model.calls) for model in (end, middle)] == [0, 1]

    def test_what_the_server_refuses(self, caller, other):
        """Requests between models are checked as those of clients."""
        error = error_of(caller(other(config=IN_OUT.replace("TYPE_INT64", "TYPE_FP32", 1))))
        assert "data-type is 'INT64', but model 'real' expects 'FP32'" in error["error"]
        assert error["code"] == 3

    def test_failure(self, caller, other):
        """The other's exception is its caller's error response."""
        error = error_of(caller(other("1 / 0")))
        assert error["error"].startswith("Failed to process the request(s) for model 'real_0', message: ZeroDivisionEr")

    def test_in_initialize(self, load, other):
        """A model may call others while it is loaded."""
        model = load(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    inputs = [pb_utils.Tensor("IN", np.array([1]))]
                    response = pb_utils.InferenceRequest(model_name="other", inputs=inputs).exec()
                    self.offset = response.output_tensors()[0].as_numpy()
                def execute(self, requests):
                    return [answer(array(each) + self.offset) for each in requests]
            """,
            callees={"other": other()},
        )
        assert model.infer({"IN": [1]})["OUT"].tolist() == [3]

    def test_request_that_came_to_the_model(self, execute):
        """It cannot be passed on as it is."""
        with pytest.raises(InferenceError, match="a request that came to the model cannot be executed"):
            execute("requests[0].exec()").infer({"IN": [1]})

    def test_the_other_never_answers(self, caller, other):
        """The call fails in time."""
        real = load_model(other("self.senders = [each.get_response_sender() for each in requests]", DECOUPLED))
        patience, real.timeout_s = real.timeout_s, 0.05
        with pytest.raises(InferenceError, match=r"the model did not finish the request within 0\.05 s: model 'real'"):
            caller(real, CALL_DECOUPLED).infer({"IN": [1]})
        real.timeout_s = patience
        del real.instance.senders
        real.close()


class TestDecoupled:
    COUNT = (
        "sender = requests[0].get_response_sender(); "
        "[sender.send(answer(each)) for each in array(requests[0])]; sender.send(flags=FINAL)"
    )

    @pytest.mark.parametrize(
        "outcome",
        [
            lambda inputs: ({"OUT": [each]} for each in inputs["IN"]),
            lambda inputs: [{"OUT": [each]} for each in inputs["IN"]],
            lambda inputs: {"OUT": inputs["IN"]},
        ],
        ids=["generator", "list", "single"],
    )
    def test_function(self, caller, outcome):
        """A function's result that is iterable is one response for each item; a single outcome is one response."""
        model = caller(outcome, CALL_DECOUPLED)
        assert model.infer({"IN": [1, 2, 3]})["OUT"].tolist() == [6]
        assert model.calls[0].decoupled

    def test_model(self, caller, other):
        """A decoupled model sends as many as it likes."""
        model = caller(other(self.COUNT, DECOUPLED), CALL_DECOUPLED)
        assert model.infer({"IN": [1, 2, 3]})["OUT"].tolist() == [6]

    def test_called_as_if_it_were_not(self, caller, other):
        """The message is Triton's, for a function and for a model."""
        for callee in (other(self.COUNT, DECOUPLED), lambda _: iter([{"OUT": [1]}])):
            assert error_of(caller(callee, name=f"m{callable(callee):d}"))["error"].startswith(IS_DECOUPLED)

    def test_cancelled(self, execute, caller, other):
        """A cancelled call is visible in the recorded call of a function, and to the sender of a model."""
        body = """
        request = pb_utils.InferenceRequest(model_name="other", inputs=[pb_utils.Tensor("IN", array(requests[0]))])
        responses = request.exec(decoupled=True)
        first = next(responses).output_tensors()[0].as_numpy()
        responses.cancel()
        return [answer(first.tolist() + [len(list(responses))])]
        """
        model = caller(lambda _: iter([{"OUT": [1]}, {"OUT": [2]}]), body)
        assert model.infer({"IN": [1]})["OUT"].tolist()[0] == 1
        assert model.calls[0].cancelled
        until_cancelled = (
            "sender = requests[0].get_response_sender(); sender.send(answer(1))\n"
            "        while not sender.is_cancelled(): time.sleep(0.001)\n"
            "        self.noticed = True; sender.send(flags=FINAL)"
        )
        with load_model(other(until_cancelled, DECOUPLED)) as real:
            again = caller(real, body, name="again")
            assert again.infer({"IN": [1]})["OUT"].tolist()[0] == 1
            assert again.calls[0].cancelled
        assert real.instance.noticed


class TestAsync:
    GATHER = """
    class TritonPythonModel:
        async def execute(self, requests):
            calls = [
                pb_utils.InferenceRequest(model_name=name, inputs=requests[0].inputs()).async_exec()
                for name in ("first", "second")
            ]
            responses = await asyncio.gather(*calls)
            return [answer([each.output_tensors()[0].as_numpy()[0] for each in responses])]
    """

    def test_functions(self, load):
        """A coroutine awaits what functions return."""
        model = load(
            self.GATHER, callees={"first": lambda _: {"OUT": [1]}, "second": lambda inputs: {"OUT": inputs["IN"]}}
        )
        assert model.infer({"IN": [2]})["OUT"].tolist() == [1, 2]

    def test_at_the_same_time(self, load, write_model):
        """Two models that are called together run together: here each waits for the other."""
        meets = "class TritonPythonModel:\n    def execute(self, requests):\n        self.barrier.wait(30)\n"
        folders = [write_model(meets + "        return [answer(N)]".replace("N", n), name=f"n{n}") for n in "12"]
        with load_model(folders[0]) as first, load_model(folders[1]) as second:
            type(first.instance).barrier = type(second.instance).barrier = threading.Barrier(2)
            model = load(self.GATHER, callees={"first": first, "second": second})
            assert model.infer({"IN": [0]})["OUT"].tolist() == [1, 2]

    def test_cancelling_the_task(self, load, other):
        """It cancels the call."""
        until_cancelled = "while not requests[0].is_cancelled(): time.sleep(0.001)\n        return [answer(0)]"
        model = load(
            """
            class TritonPythonModel:
                async def execute(self, requests):
                    call = pb_utils.InferenceRequest(model_name="other", inputs=requests[0].inputs())
                    call = asyncio.ensure_future(call.async_exec())
                    await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.wait([call])
                    return [answer(call.cancelled())]
            """,
            callees={"other": other(until_cancelled)},
        )
        assert model.infer({"IN": [0]})["OUT"].tolist() == [1]
        assert model.calls[0].cancelled

    def test_inside_a_loop_of_the_test(self, load):
        """A test that is a coroutine can ask a model, too."""

        async def ask():
            model = load(
                """
                class TritonPythonModel:
                    async def execute(self, requests):
                        return [answer(1)]
                """
            )
            return await asyncio.to_thread(model.infer, {"IN": [0]}), model.infer({"IN": [0]})

        assert [result["OUT"].tolist() for result in asyncio.run(ask())] == [[1], [1]]


def test_parameters_are_json(caller):
    """The parameters of a response can be read as JSON, as in a stub."""
    response = pb_utils.InferenceResponse(parameters={"text": "straße", "number": 1})
    assert json.loads(response.parameters()) == caller(lambda _: response).infer({"IN": [1]}).parameters
