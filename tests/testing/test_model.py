# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loading, calling and closing a model, with the results and failures."""

import gc
import threading

import numpy as np
import pytest
import triton_python_backend_utils as pb_utils

from pyruntime.testing import Code, InferenceError, LoadError, Request, load_model

ECHO = "return [answer(array(request)) for request in requests]"
# Returns its request as text.
TELLS = """
return [
    pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([repr(TELL(request))], dtype=np.object_))])
    for request in requests
]
"""
TEXT_OUT = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }, { name: "OTHER" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
BATCHED = """
max_batch_size: 4
input [ { name: "IN" data_type: TYPE_INT64 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


# The controls that a sequence model may declare.
CONTROLS = """
sequence_batching { control_input [
  { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
  { name: "ID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
] }
"""


# A model whose sequences have states that the server keeps.
STATES = """
sequence_batching { state [
  { input_name: "S" output_name: "T" data_type: TYPE_INT64 dims: [ 1 ]
    initial_state { name: "first" data_type: TYPE_INT64 dims: [ 1 ] data_file: "first" } }
] }
"""
ADDS = """
responses = []
for request in requests:
    added, state = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ("IN", "S"))
    tensors = [pb_utils.Tensor("OUT", added), pb_utils.Tensor("T", state + added)]
    responses.append(pb_utils.InferenceResponse(tensors))
return responses
"""


def failure_of(model, inputs, **options):
    """The error that a request must end with."""
    with pytest.raises(InferenceError) as caught:
        model.infer(inputs, **options)
    return caught.value


class TestRequests:
    def test_what_goes_in_comes_out(self, execute):
        """Outputs are arrays by name, which the caller owns: changing one changes nothing else."""
        model = execute(ECHO)
        result = model.infer({"IN": np.array([1, 2, 3])})
        assert list(result.outputs) == ["OUT"]
        assert "OUT" in result
        assert "IN" not in result
        result["OUT"][0] = 7
        assert result["OUT"].tolist() == [7, 2, 3]
        assert model.infer({"IN": [4]})["OUT"].tolist() == [4]
        assert repr(model) == "<LoadedModel m 1>"
        assert repr(result) == "<Result ['OUT INT64 [3]'] final>"

    def test_output_that_is_not_there(self, execute):
        """A missing output is a KeyError that lists the outputs."""
        with pytest.raises(KeyError, match="there is no output 'X'; there are OUT"):
            execute(ECHO).infer({"IN": [1]})["X"]

    def test_controls(self, execute):
        """A model of sequences has the control inputs that it asks for, as it would have them of the server."""
        names = "('START', 'ID')"
        tells = f"[pb_utils.get_input_tensor_by_name(request, name).as_numpy().tolist() for name in {names}]"
        model = execute(TELLS.replace("TELL(request)", tells), TEXT_OUT + CONTROLS)
        for start in (True, False):
            told = model.infer({"IN": [1]}, correlation_id=7, sequence_start=start)["OUT"].tolist()
            assert told == [repr([[int(start)], [7]]).encode()]

    def test_states(self, execute, tmp_path):
        """A state is an input, which may be left out, and an output. Nothing is kept between requests."""
        (tmp_path / "m" / "initial_state").mkdir(parents=True, exist_ok=True)
        (tmp_path / "m" / "initial_state" / "first").write_bytes(np.array([40]).tobytes())
        model = execute(ADDS, BATCHED.replace("max_batch_size: 4", "") + STATES)
        place = {"correlation_id": 7, "sequence_start": True}
        assert model.infer({"IN": [2]}, **place)["T"].tolist() == [42]
        assert model.infer({"IN": [2], "S": [5]}, correlation_id=7)["T"].tolist() == [7]
        wrong = failure_of(model, {"IN": [2], "S": [5, 6]}, correlation_id=7)
        assert "unexpected shape for input 'S' for model 'm'. Expected [1], got [2]" in wrong.message

    @pytest.mark.parametrize(
        ("ask", "options", "told"),
        [
            ("request_id()", {"request_id": "seven"}, "'seven'"),
            ("request_id()", {}, "''"),
            ("correlation_id()", {"correlation_id": "seq"}, "'seq'"),
            ("correlation_id()", {"correlation_id": 42}, "42"),
            ("flags()", {"sequence_start": True, "sequence_end": True}, "3"),
            ("flags()", {}, "0"),
            ("timeout()", {"timeout": 1000}, "1000"),
            ("parameters()", {"parameters": {"a": 1, "b": "x", "c": True}}, """'{"a":1,"b":"x","c":true}'"""),
            ("parameters()", {"parameters": {"priority": 1, "sequence_id": 3}}, "'{}'"),
            ("correlation_id()", {"parameters": {"priority": 1, "sequence_id": 3}}, "3"),
            ("requested_output_names()", {"requested_outputs": ["OUT"]}, "{'OUT'}"),
            ("is_cancelled()", {}, "False"),
        ],
    )
    def test_options(self, execute, ask, options, told):
        """The model sees the options of the request as it would see those of a client."""
        model = execute(TELLS.replace("TELL(request)", f"request.{ask}"), TEXT_OUT)
        assert model.infer({"IN": [1]}, **options)["OUT"].tolist() == [told.encode()]

    def test_request_object(self, execute):
        """A Request has the same options, and can be sent as often as one likes."""
        model = execute(TELLS.replace("TELL(request)", "request.request_id()"), TEXT_OUT)
        request = Request({"IN": [1]}, request_id="a")
        assert [model.infer(request)["OUT"].tolist() for _ in range(2)] == [[b"'a'"]] * 2
        assert repr(request) == "<Request 'a' ['IN']>"
        with pytest.raises(TypeError, match="a Request says itself what it has: request_id"):
            model.infer(request, request_id="b")

    def test_outputs_not_asked_for(self, execute):
        """An output that was not requested is left out of the result."""
        body = TELLS.replace(
            "InferenceResponse([", 'InferenceResponse([pb_utils.Tensor("OTHER", np.array([b""], dtype=np.object_)), '
        )
        model = execute(body.replace("TELL(request)", "0"), TEXT_OUT)
        assert list(model.infer({"IN": [1]}, requested_outputs=["OUT"]).outputs) == ["OUT"]
        assert list(model.infer({"IN": [1]}).outputs) == ["OTHER", "OUT"]

    def test_parameters_of_the_response(self, execute):
        """They come as a dict."""
        model = execute("return [pb_utils.InferenceResponse([], parameters={'a': 1, 'b': 'x'}) for _ in requests]")
        assert model.infer({"IN": [1]}).parameters == {"a": 1, "b": "x"}

    def test_inputs_that_the_model_keeps(self, load):
        """An input that the model keeps does not change with later requests."""
        model = load(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.kept = []
                def execute(self, requests):
                    self.kept += [array(request) for request in requests]
                    return [answer(np.concatenate(self.kept)) for _ in requests]
            """
        )
        assert [model.infer({"IN": [n]})["OUT"].tolist() for n in range(3)] == [[0], [0, 1], [0, 1, 2]]

    def test_reshape(self, execute):
        """The model sees its inputs in the shape that is configured for it, and the test sees outputs in theirs."""
        config = """
        input [ { name: "IN" data_type: TYPE_INT64 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
        output [ { name: "OUT" data_type: TYPE_INT64 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } ]
        """
        model = execute("return [pb_utils.InferenceResponse([pb_utils.Tensor('OUT', array(requests[0]).T)])]", config)
        assert model.infer({"IN": [1, 2, 3, 4]})["OUT"].tolist() == [1, 3, 2, 4]


ID = "[request id: 7] "


class TestRefusals:
    @pytest.mark.parametrize(
        ("inputs", "options", "message"),
        [
            ({}, {}, f"{ID}expected 1 inputs but got 0 inputs for model 'm'."),
            ({"X": [1]}, {}, "unexpected inference input 'X' for model 'm'"),
            (
                {"IN": np.array([1.0])},
                {},
                f"{ID}inference input 'IN' data-type is 'FP64', but model 'm' expects 'INT64'",
            ),
            ({"IN": [[1]]}, {}, f"{ID}unexpected shape for input 'IN' for model 'm'. Expected [-1], got [1,1]. "),
            ({"IN": [1]}, {"requested_outputs": ["X"]}, "unexpected inference output 'X' for model 'm'"),
        ],
    )
    def test_by_the_server(self, execute, inputs, options, message):
        """A request that the server would refuse does not reach the model, and fails with the server's message."""
        model = execute("raise AssertionError('it was asked')")
        failure = failure_of(model, inputs, request_id="7", **options)
        assert failure.message.startswith(message)
        assert failure.code is Code.INVALID_ARG

    def test_parameters(self, execute):
        """Names that are Triton's own are refused."""
        assert "reserved for Triton" in failure_of(execute(ECHO), {"IN": [1]}, parameters={"triton_x": 1}).message

    def test_what_is_no_tensor(self, execute):
        """That is a mistake of the test, not of a client."""
        with pytest.raises(TypeError, match="input 'IN' is no tensor: NumPy dtype is not supported"):
            execute(ECHO).infer({"IN": np.array([1j])})


class TestFailures:
    def test_exception(self, execute):
        """An exception fails the request, in the words that a client reads, and is its cause."""
        failure = failure_of(execute("raise ValueError('on purpose')"), {"IN": [1]})
        assert failure.message == (
            "Failed to process the request(s) for model 'm_0', message: ValueError: on purpose\n\nAt:\n"
            "  1/model.py(16): execute\n"
        )
        assert failure.code is Code.INTERNAL
        assert type(failure.__cause__) is ValueError

    def test_exit(self, execute):
        """Not even sys.exit() ends the tests."""
        model = execute("sys.exit(3)")
        assert "message: SystemExit: 3" in failure_of(model, {"IN": [1]}).message

    def test_error_response(self, execute):
        """An error that the model returns is raised, with its code."""
        model = execute(
            "return [pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.UNAVAILABLE))]"
        )
        failure = failure_of(model, {"IN": [1]})
        assert (failure.message, failure.code) == ("no", pb_utils.TritonError.UNAVAILABLE)
        assert failure.__cause__ is None

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            ("return 5", "Expected a list in the execute return, found type '<class 'int'>'."),
            ("return []", "InferenceRequest(s) size is:1, and InferenceResponse(s) size is:0"),
            ("return ['x']", "Expected an 'InferenceResponse' object in the execute function return list"),
        ],
    )
    def test_wrong_return_values(self, execute, body, message):
        """The return value of execute is checked as in a stub."""
        assert message in failure_of(execute(body), {"IN": [1]}).message

    def test_the_model_goes_on(self, execute):
        """One failure is no reason to fail again."""
        model = execute("1 / array(requests[0])[0] if array(requests[0])[0] else 1 / 0\n" + ECHO)
        failure_of(model, {"IN": [0]})
        assert model.infer({"IN": [1]})["OUT"].tolist() == [1]

    def test_log(self, execute, caplog):
        """The traceback, and the log records of the model, go to Python's logging."""
        model = execute("pb_utils.Logger.log_info('here'); logging.getLogger('own').error('there'); 1 / 0")
        failure_of(model, {"IN": [1]})
        assert ("triton_python_backend_utils", 20, "here") in caplog.record_tuples
        assert ("own", 40, "there") in caplog.record_tuples
        assert "ZeroDivisionError" in caplog.text
        (record,) = [record for record in caplog.records if record.message == "here"]
        assert record.pathname.endswith("1/model.py")


class TestBatches:
    def test_requests_of_a_batch(self, execute):
        """Execute gets all of them at once."""
        model = execute("return [answer(np.full_like(array(each), len(requests))) for each in requests]", BATCHED)
        results = model.execute([{"IN": [[1]]}, Request({"IN": [[2], [3]]}), {"IN": [[4]]}])
        assert [result["OUT"].tolist() for result in results] == [[3], [3, 3], [3]]

    def test_one_fails(self, execute):
        """An error is the result of its own request, and all others have theirs."""
        body = """
        return [
            answer(1) if array(each)[0] else pb_utils.InferenceResponse(error=pb_utils.TritonError("no"))
            for each in requests
        ]
        """
        good, bad, refused = execute(body).execute([{"IN": [1]}, {"IN": [0]}, {}])
        assert good["OUT"].tolist() == [1]
        assert good.error is None
        assert bad.error.message == "no"
        assert "got 0 inputs" in refused.error.message
        with pytest.raises(InferenceError, match="no"):
            bad["OUT"]

    def test_too_many_rows(self, execute):
        """The server would not do that either."""
        with pytest.raises(ValueError, match=r"these requests have 5 rows, .* at most 4 at a time, its max_batch_size"):
            execute(ECHO, BATCHED).execute([{"IN": [[1]] * 3}, {"IN": [[1]] * 2}])


class TestLoading:
    def test_arguments_of_initialize(self, load, tmp_path):
        """They are those of a stub."""
        model = load(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.args = args
                    self.folder = pb_utils.get_model_dir()
                def execute(self, requests):
                    pass
            """
        )
        args = model.instance.args
        assert args.pop("model_config").startswith('{"name":"m"')
        assert args == {
            "model_instance_kind": "CPU", "model_instance_name": "m_0", "model_instance_device_id": "0",
            "model_repository": str(tmp_path / "m"), "model_version": "1", "model_name": "m",
        }  # fmt: skip
        assert model.instance.folder == str(tmp_path / "m/1")
        assert (model.name, model.version, model.config["name"]) == ("m", 1, "m")

    def test_everything_in_one_thread(self, load):
        """As in a stub, the model has a thread for all that is called; it is not that of the test."""
        model = load(
            """
            class TritonPythonModel:
                def initialize(self, args):
                    self.threads = [threading.current_thread()]
                def execute(self, requests):
                    self.threads.append(threading.current_thread())
                    return [answer(0) for _ in requests]
                def finalize(self):
                    self.threads.append(threading.current_thread())
            """
        )
        model.infer({"IN": [1]})
        model.close()
        (thread,) = set(model.instance.threads)
        assert len(model.instance.threads) == 3
        assert thread is not threading.current_thread()
        assert not thread.is_alive()

    @pytest.mark.parametrize(
        ("source", "message"),
        [
            ("1 / 0", "ZeroDivisionError: division by zero\n\nAt:\n  1/model.py(14): <module>\n"),
            ("class TritonPythonModel: pass", "does not implement `execute` method."),
            ("", "does not define a class TritonPythonModel"),
            (
                "class TritonPythonModel:\n    def execute(self): pass\n    def initialize(self, args): exit()",
                "SystemExit: None\n\nAt:\n",
            ),
        ],
    )
    def test_failures(self, load, source, message):
        """A load failure is a LoadError with the repository index's message and the exception as its cause."""
        with pytest.raises(LoadError) as caught:
            load(source)
        assert message in str(caught.value)
        if "At:" in message:
            assert type(caught.value.__cause__).__name__ == message.partition(":")[0]

    def test_no_such_folder(self, load_model, tmp_path):
        """A path that leads nowhere is said so."""
        with pytest.raises(LoadError, match="there is no folder of a model at"):
            load_model(tmp_path / "nothing")

    def test_is_ready(self, load):
        """The model's own opinion, if it has one."""
        source = "class TritonPythonModel:\n    def execute(self, requests): pass\n"
        assert load(source).is_ready()
        assert not load(source + "    def is_ready(self): return False", name="n").is_ready()
        assert load(source + "    async def is_ready(self): return True", name="o").is_ready()
        with pytest.raises(TypeError, match="must return a boolean value, found 1"):
            load(source + "    def is_ready(self): return 1", name="p").is_ready()


class TestClosing:
    SOURCE = """
    class TritonPythonModel:
        def execute(self, requests):
            return [answer(0) for _ in requests]
        def finalize(self):
            self.problem = None
            try:
                pb_utils.InferenceRequest(model_name="n").exec()
            except pb_utils.TritonModelException as exc:
                self.problem = str(exc)
            END
    """

    def test_finalize(self, load):
        """It is called once, and may not call other models any more."""
        model = load(self.SOURCE.replace("END", "self.times = getattr(self, 'times', 0) + 1"))
        model.close()
        model.close()
        assert model.instance.problem == "BLS is only supported during the 'execute' function."
        assert model.instance.times == 1

    def test_no_requests_after_that(self, load):
        """A closed model takes no requests."""
        model = load(self.SOURCE.replace("END", ""))
        model.close()
        with pytest.raises(RuntimeError, match="model 'm' is closed"):
            model.infer({"IN": [1]})

    def test_finalize_that_fails(self, load):
        """The server only logs it; a test fails."""
        model = load(self.SOURCE.replace("END", "raise ValueError('at the end')"))
        with pytest.raises(ValueError, match="at the end"):
            model.close()
        model.close()

    def test_failing_twice(self, load):
        """The test sees the first failure, with a note about the failure to close the model."""
        model = load(self.SOURCE.replace("END", "raise ValueError('at the end')"))
        with pytest.raises(KeyError, match="first") as caught, model:
            raise KeyError("first")
        assert caught.value.__notes__ == ["besides, model 'm' could not be closed: ValueError('at the end')"]

    def test_nothing_is_left(self, write_model):
        """A closed model can be collected, with all that it had."""
        with load_model(write_model(self.SOURCE.replace("END", ""))) as model:
            model.infer({"IN": [1]})
            instance = type(model.instance)
        del model
        gc.collect()
        assert not [each for each in gc.get_objects() if type(each) is instance]
