# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A worker in a thread, with the host's end of its socket in the test's hands."""

import json
import logging
import textwrap

import pytest

from pyruntime.utils import flow_control
from pyruntime.utils.channel import FRAME_BYTES_MAX
from pyruntime.utils.messages import (
    NO_SLOT,
    OK,
    REPORT_DROPPED,
    Ask,
    AutoComplete,
    CheckReady,
    Completed,
    Credit,
    DropSequences,
    Failed,
    Infer,
    IsReady,
    Load,
    LoadFailed,
    Ready,
    Release,
    Requeue,
    Respond,
    Result,
    Retired,
    Stop,
    Stopped,
)

PREFIX = "Failed to process the request(s) for model 'm_0', message: "
GROWTH = 1 << 20
READY = Ready(False, False)


MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n{}"
ECHO = """
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""


def wire(host, *args, **kwargs):
    return host.wire(*args, **kwargs)


class TestLoad:
    def test_initialize_gets_the_arguments(self, host):
        """`initialize` is called, once, with a dict of text."""
        answer = host.load("""
            class TritonPythonModel:
                def initialize(self, args):
                    assert args["model_name"] == "m" and type(args) is dict
                    assert json.loads(args["model_config"])["name"] == "m"
                def execute(self, requests):
                    return []
        """)
        assert answer == READY

    def test_without_initialize(self, host):
        """`initialize` is optional."""
        host.execute("return []")

    def test_initialize_fails(self, host, caplog):
        """The reason is the exception and where in the model it was; the traceback is logged; the stub ends."""
        answer = host.load("""
            class TritonPythonModel:
                def initialize(self, args):
                    raise ValueError("no weights")
                def execute(self, requests):
                    return []
        """)
        assert answer == LoadFailed("ValueError: no weights\n\nAt:\n  1/model.py(7): initialize\n")
        assert host.receive() is None
        assert "Traceback" in caplog.text

    def test_no_file(self, host):
        """A missing file fails the load without a traceback."""
        location = {"model_dir": "/nowhere", "version": "1", "file": "/nowhere/1/model.py"}
        assert host.ask(Load(location, host.ARGS, 1, 7)) == LoadFailed(
            "Python model file not found in '/nowhere/1/model.py'"
        )
        assert host.receive() is None

    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("import no_such_module_y", "ModuleNotFoundError: No module named 'no_such_module_y'"),
            ("raise SystemExit(3)", "SystemExit: 3"),
            ("1 +", "SyntaxError: invalid syntax"),
            ("raise pb_utils.TritonModelException('no')", "TritonModelException: no"),
        ],
    )
    def test_import_fails(self, host, source, reason, capsys):
        """Every exception in an import fails the load, SystemExit included."""
        answer = host.load(source)
        assert type(answer) is LoadFailed
        assert answer.reason.startswith(reason)

    def test_reason_that_fits_no_frame(self, host, capsys):
        """A reason that is too long is cut, so that there is one."""
        answer = host.load(f"raise ValueError('x' * {FRAME_BYTES_MAX})")
        assert type(answer) is LoadFailed
        assert answer.reason.startswith("ValueError: xxx")

    def test_reason_that_is_no_text(self, host, capsys):
        """A reason with a lone surrogate arrives in some form."""
        answer = host.load("raise ValueError('\\udcff')")
        assert type(answer) is LoadFailed
        assert answer.reason.startswith("ValueError: ")


class TestAutoComplete:
    def test_completes(self, host):
        """The model's own method completes the configuration, and the model may then be loaded."""
        location = host.location("""
            class TritonPythonModel:
                @staticmethod
                def auto_complete_config(config):
                    config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [2]})
                    config.set_max_batch_size(8)
                    return config
                def execute(self, requests):
                    return []
        """)
        answer = host.ask(AutoComplete(location, '{"name": "m"}'))
        assert type(answer) is Completed
        completed = json.loads(answer.config)
        assert completed["max_batch_size"] == 8
        assert completed["input"] == [{"name": "IN", "data_type": "TYPE_FP32", "dims": [2]}]
        assert host.ask(Load(location, host.ARGS, 1, 7)) == READY

    def test_without_the_method(self, host):
        """A model that completes nothing says so."""
        location = host.location(MODEL.format("        return []"))
        assert host.ask(AutoComplete(location, '{"name": "m"}')) == Completed("")
        assert host.ask(Load(location, host.ARGS, 1, 7)) == READY

    @pytest.mark.parametrize("value", ["None", "{}", "1"])
    def test_returns_something_else(self, host, value):
        """Triton's words for a method that returns no ModelConfig."""
        location = host.location(f"""
            class TritonPythonModel:
                @staticmethod
                def auto_complete_config(config):
                    return {value}
                def execute(self, requests):
                    return []
        """)
        assert host.ask(AutoComplete(location, '{"name": "m"}')) == LoadFailed(
            "auto_complete_config function in model 'm' must return a valid pb.ModelConfig object."
        )
        assert host.receive() is None

    def test_raises(self, host, capsys):
        """Its exception is the reason."""
        location = host.location("""
            class TritonPythonModel:
                @staticmethod
                def auto_complete_config(config):
                    raise ValueError("no")
                def execute(self, requests):
                    return []
        """)
        assert host.ask(AutoComplete(location, "{}")) == LoadFailed(
            "ValueError: no\n\nAt:\n  1/model.py(8): auto_complete_config\n"
        )


class TestInfer:
    def test_a_batch(self, host):
        """Responses come in the order of the requests, in the response region, with the times of execute."""
        host.execute(ECHO)
        result = host.infer(wire(host, [1, 2]), wire(host, [3], 64))
        assert type(result) is Result
        assert (result.batch, result.retained) == (1, [])
        assert 0 < result.start_ns <= result.end_ns
        assert [response[0] for response in result.responses] == [OK, OK]
        assert [host.array(response[3][0]) for response in result.responses] == [[1.0, 2.0], [3.0]]

    def test_released_slots_are_reused(self, host):
        """A slot that the host gave back, by either message, serves again."""
        host.execute(ECHO)
        first = host.infer(wire(host, [1])).responses[0][2]
        second = host.infer(wire(host, [2])).responses[0][2]
        assert first != second
        assert host.infer(wire(host, [3]), released=[first]).responses[0][2] == first
        host.send(Release([second]))
        assert host.infer(wire(host, [4])).responses[0][2] == second

    def test_two_posted_at_once(self, host):
        """Batches are answered in the order they came."""
        host.execute(ECHO)
        host.send(Infer(1, [wire(host, [1])], []))
        host.send(Infer(2, [wire(host, [2], 64)], []))
        assert [host.receive().batch, host.receive().batch] == [1, 2]

    def test_coroutine(self, host):
        """An `async def execute` is waited for, on the same loop each time."""
        assert (
            host.load("""
            import asyncio
            class TritonPythonModel:
                loop = None
                async def execute(self, requests):
                    await asyncio.sleep(0)
                    assert self.loop in (None, asyncio.get_running_loop())
                    self.loop = asyncio.get_running_loop()
                    return [pb_utils.InferenceResponse() for _ in requests]
        """)
            == READY
        )
        for _ in range(2):
            assert host.infer(wire(host)).responses == [[OK, "", NO_SLOT, [], ""]]

    def test_of_no_requests(self, host):
        """An empty batch has an empty result."""
        host.execute("return []")
        assert host.infer().responses == []

    def test_error_of_one_request(self, host):
        """A response's error is that request's alone."""
        host.execute("""
            bad = pb_utils.InferenceResponse(error=pb_utils.TritonError("no", pb_utils.TritonError.NOT_FOUND))
            return [pb_utils.InferenceResponse(), bad]
        """)
        result = host.infer(wire(host), wire(host))
        assert [response[:2] for response in result.responses] == [[OK, ""], [3 - 1, "no"]]

    def test_unknown_output(self, host):
        """An output that is not configured is dropped, and the host is told so once."""
        host.execute('return [pb_utils.InferenceResponse([pb_utils.Tensor("X", np.zeros(1))])]')
        host.send(Infer(1, [wire(host)], []))
        assert host.receive() == Ask(0, REPORT_DROPPED, ["X"])
        assert host.receive().responses == [[OK, "", NO_SLOT, [], ""]]
        assert host.infer(wire(host)).responses == [[OK, "", NO_SLOT, [], ""]]


class TestExecuteFails:
    def failure(self, host, count=1):
        failed = host.infer(*[wire(host)] * count)
        assert type(failed) is Failed
        assert 0 < failed.start_ns <= failed.end_ns
        assert failed.retained == []
        return failed.message

    def test_raises(self, host):
        """The whole batch fails, with the exception and where in the model it was."""
        host.execute("raise ValueError('no')")
        assert self.failure(host, 2) == PREFIX + "ValueError: no\n\nAt:\n  1/model.py(6): execute\n"

    def test_goes_on(self, host):
        """A failure does not affect the next batch."""
        host.execute("""
            self.count = getattr(self, "count", 0) + 1
            assert self.count > 1
            return [pb_utils.InferenceResponse()]
        """)
        assert self.failure(host).startswith(PREFIX + "AssertionError: \n\nAt:\n")
        assert type(host.infer(wire(host))) is Result

    def test_logs_the_traceback(self, host, caplog):
        """The server's log has the whole traceback."""
        host.execute("raise ValueError('no')")
        self.failure(host)
        (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert "Traceback" in record.getMessage()

    @pytest.mark.parametrize("statement", ["raise SystemExit", "raise KeyboardInterrupt", "import sys; sys.exit(0)"])
    def test_exits(self, host, statement):
        """Even an exit fails only the batch."""
        host.execute(statement)
        self.failure(host)
        self.failure(host)

    def test_model_exception(self, host):
        """A TritonModelException of the model is reported like any other exception."""
        host.execute("raise pb_utils.TritonModelException('no')")
        assert self.failure(host) == PREFIX + "TritonModelException: no\n\nAt:\n  1/model.py(6): execute\n"

    @pytest.mark.parametrize("value", ["()", "{}", "5"])
    def test_returns_no_list(self, host, value):
        """Triton's words, exactly."""
        host.execute(f"return {value}")
        kind = type(eval(value))
        assert self.failure(host) == f"{PREFIX}Expected a list in the execute return, found type '{kind}'."

    def test_returns_too_few(self, host):
        """Triton's words, exactly."""
        host.execute("return [pb_utils.InferenceResponse()]")
        assert self.failure(host, 2) == (
            f"{PREFIX}Number of InferenceResponse objects do not match the number of InferenceRequest objects. "
            "InferenceRequest(s) size is:2, and InferenceResponse(s) size is:1\n"
        )

    @pytest.mark.parametrize("value", ["[]", "'no'"])
    def test_returns_something_else(self, host, value):
        """Triton's words, exactly."""
        host.execute(f"return [{value}]")
        kind = type(eval(value))
        assert self.failure(host) == (
            f"{PREFIX}Expected an 'InferenceResponse' object in the execute function return list, found type '{kind}'."
        )

    def test_coroutine_raises(self, host):
        """An exception in a coroutine is no different."""
        assert (
            host.load("""
            class TritonPythonModel:
                async def execute(self, requests):
                    raise ValueError("no")
        """)
            == READY
        )
        message = host.infer(wire(host)).message
        assert message.startswith(PREFIX + "ValueError: no\n\nAt:\n  1/model.py(7): execute\n")

    def test_message_that_fits_no_frame(self, host):
        """A message that is too long is cut, and the stub lives on."""
        host.execute(f"raise ValueError('x' * {FRAME_BYTES_MAX})")
        assert self.failure(host).startswith(PREFIX + "ValueError: xxx")

    def test_message_that_is_no_text(self, host):
        """An exception about a file whose name is no UTF-8 fails the batch, and nothing else."""
        host.execute("open(b'/nowhere/\\xff'.decode(errors='surrogateescape'))")
        assert self.failure(host).startswith(PREFIX + "FileNotFoundError: ")

    def test_message_that_cannot_be_told(self, host):
        """An exception without a text does not end the stub."""
        assert (
            host.load("""
            class Odd(Exception):
                def __str__(self):
                    raise RuntimeError
            class TritonPythonModel:
                def execute(self, requests):
                    raise Odd
        """)
            == READY
        )
        assert self.failure(host).startswith(PREFIX)

    def test_error_that_is_no_text(self, host):
        """A response's error with a lone surrogate arrives in some form, or fails the batch."""
        host.execute("return [pb_utils.InferenceResponse(error=pb_utils.TritonError('\\udcff'))]")
        assert type(host.infer(wire(host))) in (Result, Failed)

    @pytest.mark.parametrize(
        "response",
        [
            "pb_utils.InferenceResponse([pb_utils.Tensor('OUT', np.array(['\\udcff'], object))])",
            "pb_utils.InferenceResponse(error='no')",
            "pb_utils.InferenceResponse([pb_utils.Tensor(5, np.zeros(1))])",
        ],
        ids=["surrogate", "error", "name"],
    )
    def test_responses_that_cannot_be_written(self, host, response):
        """A response that cannot be written fails its request or its batch, and the stub continues."""
        host.execute(f"return [{response} for each in requests]")
        for _ in range(2):
            answer = host.infer(wire(host), wire(host))
            assert type(answer) in (Result, Failed)
            if type(answer) is Result:
                assert all(response[0] != OK for response in answer.responses)

    def test_result_that_fits_no_frame(self, host):
        """A result with more text than a frame holds fails its batch, and its slots are free again."""
        host.execute(f"""
            out = pb_utils.Tensor("OUT", np.zeros(2, np.float32))
            text = requests[0].parameters() and "x" * ({FRAME_BYTES_MAX} if requests[0].timeout() else 1)
            return [pb_utils.InferenceResponse([out], parameters={{"a": text}})]
        """)
        slot = host.infer(wire(host)).responses[0][2]
        large = wire(host)
        large[3] = 1
        message = host.infer(large, released=[slot]).message
        assert message.startswith(PREFIX)
        assert f"a frame holds {FRAME_BYTES_MAX}" in message
        assert host.infer(wire(host)).responses[0][2] == slot


KEEP = """
self.kept = getattr(self, "kept", [])
for each in requests:
    word = json.loads(each.parameters()).get("word")
    if word == "keep":
        self.kept.append(each.inputs()[0].as_numpy())
    elif word == "drop":
        self.kept.clear()
return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", sum(self.kept, np.zeros(1, np.float32)))]) for _ in requests]
"""


class TestRetained:
    def test_is_told_and_told_again(self, host):
        """Inputs that a model keeps are retained, and retired after the batch in which it let go of them."""
        host.execute(KEEP)
        keep, drop = '{"word": "keep"}', '{"word": "drop"}'
        assert host.infer(wire(host, [1]), wire(host, [2], 64, parameters=keep)).retained == [1]
        assert host.infer(wire(host, [3], 128, parameters=keep)).retained == [0]
        result = host.infer(wire(host, [4], 192))
        assert result.retained == []
        assert host.array(result.responses[0][3][0]) == [5.0]
        assert host.infer(wire(host, [5], 192, parameters=drop)).retained == []
        assert host.receive() == Retired([2, 3])

    def test_of_a_model_that_keeps_the_list(self, host):
        """A model that keeps the list of requests retains all requests in it."""
        host.execute("self.kept = requests\nreturn [pb_utils.InferenceResponse() for _ in requests]")
        assert host.infer(wire(host), wire(host)).retained == [0, 1]
        assert host.infer(wire(host)).retained == [0]
        assert host.receive() == Retired([1, 2])

    def test_responses_retain_nothing(self, host):
        """An input that is the output is not retained once it was written."""
        host.execute(ECHO)
        for _ in range(3):
            assert host.infer(wire(host, [1])).retained == []

    @pytest.mark.parametrize("response", ["return 5", "raise ValueError(array)", "return [1]"])
    def test_failures_retain_nothing(self, host, response):
        """A batch that failed is not held by its own traceback."""
        host.execute(f"array = requests[0].inputs()[0].as_numpy()\n{response}")
        for _ in range(3):
            failed = host.infer(wire(host, [1]))
            assert (type(failed), failed.retained) == (Failed, [])

    def test_failures_that_retain(self, host):
        """A model that keeps an input and then fails has kept it."""
        host.execute("self.kept = requests[0].inputs()[0].as_numpy()\nraise ValueError('no')")
        assert host.infer(wire(host, [1])).retained == [0]

    def test_coroutines_retain_nothing(self, host):
        """A finished coroutine does not retain its batch."""
        assert (
            host.load("""
            class TritonPythonModel:
                async def execute(self, requests):
                    array = requests[0].inputs()[0].as_numpy()
                    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
        """)
            == READY
        )
        for _ in range(3):
            assert host.infer(wire(host, [1])).retained == []

    def test_failed_coroutines_retain_nothing(self, host):
        """A failed coroutine does not retain its batch."""
        assert (
            host.load("""
            class TritonPythonModel:
                async def execute(self, requests):
                    raise ValueError("no")
        """)
            == READY
        )
        for _ in range(3):
            assert host.infer(wire(host, [1])).retained == []


class TestIsReady:
    """A model's own word on whether it is ready, asked while it executes, too."""

    def load(self, host, body):
        source = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"
        assert host.load(source + textwrap.indent(textwrap.dedent(body), "    ")) == Ready(True, False)

    @pytest.mark.parametrize("prefix", ["", "async "])
    @pytest.mark.parametrize("ready", [True, False])
    def test_answer(self, host, prefix, ready):
        """The result of `is_ready` reaches the host, for a function and for a coroutine."""
        self.load(host, f"""
            {prefix}def is_ready(self):
                return {ready}
        """)  # fmt: skip
        assert host.ask(CheckReady()) == IsReady(ready, "")
        assert host.ask(CheckReady()) == IsReady(ready, "")

    @pytest.mark.parametrize("value", ["1", "None", "'yes'", "np.True_"])
    def test_something_else(self, host, value):
        """Triton's words, exactly."""
        self.load(host, f"""
            def is_ready(self):
                return {value}
        """)  # fmt: skip
        assert host.ask(CheckReady()) == IsReady(False, "is_ready() must return a boolean value")

    def test_raises(self, host, caplog):
        """A model whose `is_ready` raises is not ready, and the log has the traceback."""
        self.load(host, """
            def is_ready(self):
                raise ValueError("no")
        """)  # fmt: skip
        assert host.ask(CheckReady()) == IsReady(False, "is_ready() failed: ValueError")
        assert "Traceback" in caplog.text

    def test_while_it_executes(self, host):
        """It is asked at any time."""
        source = """
            import threading
            class TritonPythonModel:
                asked = threading.Event()
                def execute(self, requests):
                    assert self.asked.wait(60)
                    return [pb_utils.InferenceResponse() for _ in requests]
                def is_ready(self):
                    self.asked.set()
                    return False
        """
        assert host.load(source) == Ready(True, False)
        host.post(wire(host))
        host.send(CheckReady())
        answer, result = host.receive_all(IsReady, Result)
        assert answer == IsReady(False, "")
        assert result.batch == 1

    def test_without_the_method(self, host):
        """A model without an `is_ready` method is loaded as one that is not to be asked."""
        source = "class TritonPythonModel:\n    is_ready = 5\n    def execute(self, requests):\n        return []\n"
        assert host.load(source) == READY


class TestEnd:
    def test_closes_its_event_loop(self, host, loops):
        """A loop that coroutines needed is closed at the end, and there is only one."""
        assert (
            host.load("""
            class TritonPythonModel:
                async def execute(self, requests):
                    return [pb_utils.InferenceResponse() for _ in requests]
        """)
            == READY
        )
        host.infer(wire(host))
        host.infer(wire(host))
        assert host.ask(Stop()) == Stopped()
        host.join()
        assert [loop.is_closed() for loop in loops] == [True]

    def test_finalize(self, host, tmp_path):
        """`finalize` is called before the stub says that it stopped, and that is its last word."""
        assert (
            host.load(f"""
            class TritonPythonModel:
                def execute(self, requests):
                    return []
                def finalize(self):
                    open({str(tmp_path / "finalized")!r}, "w").close()
        """)
            == READY
        )
        assert host.ask(Stop()) == Stopped()
        assert (tmp_path / "finalized").exists()
        assert host.receive() is None
        assert host.died is None

    @pytest.mark.parametrize("statement", ["raise ValueError('no')", "raise SystemExit"])
    def test_finalize_fails(self, host, statement, caplog):
        """An exception of `finalize` is logged and nothing else."""
        assert (
            host.load(f"""
            class TritonPythonModel:
                def execute(self, requests):
                    return []
                def finalize(self):
                    {statement}
        """)
            == READY
        )
        assert host.ask(Stop()) == Stopped()
        assert "finalize failed" in caplog.text

    def test_without_finalize(self, host):
        """`finalize` is optional."""
        host.execute("return []")
        assert host.ask(Stop()) == Stopped()

    def test_before_it_loaded_anything(self, host):
        """A stub with no model stops as well."""
        assert host.ask(Stop()) == Stopped()
        assert host.receive() is None

    def test_what_was_posted_is_answered_first(self, host):
        """Stop comes behind the batches before it."""
        host.execute(ECHO)
        host.send(Infer(1, [wire(host, [1])], []))
        host.send(Stop())
        assert type(host.receive()) is Result
        assert host.receive() == Stopped()

    def test_the_host_is_gone(self, hosts):
        """A stub whose host hangs up ends without a word."""
        host = hosts()
        host.execute("return []")
        host.close()
        assert host.died is None


class TestDropSequences:
    MODEL = """
        class TritonPythonModel:
            def initialize(self, args):
                self.told = []
            def execute(self, requests):
                told, self.told = self.told, []
                return [pb_utils.InferenceResponse(parameters={"told": json.dumps(told)}) for _ in requests]
            PREFIXdef drop_sequences(self, ids):
                self.told.append(ids)
                if ids == [0]:
                    raise ValueError("no")
    """

    @pytest.mark.parametrize("prefix", ["", "async "])
    def test_told(self, host, prefix, caplog):
        """The model is told between batches, by a function or a coroutine. An exception is logged, and no more."""
        assert host.load(self.MODEL.replace("PREFIX", prefix)) == Ready(False, True)
        for ids in ([1, "two"], [0], [3]):
            host.send(DropSequences(ids))
        host.post(wire(host))
        (result,) = host.receive_all(Result)
        assert json.loads(json.loads(result.responses[0][4])["told"]) == [[1, "two"], [0], [3]]
        assert "drop_sequences failed" in caplog.text

    def test_threads(self, host):
        """One of several threads calls the method."""
        host.load(self.MODEL.replace("PREFIX", ""), concurrency=2)
        host.send(DropSequences([1]))
        told = []
        while not told:
            host.post(wire(host))
            (result,) = host.receive_all(Result)
            told = json.loads(json.loads(result.responses[0][4])["told"])
        assert told == [[1]]

    def test_frees_inputs(self, host):
        """Inputs that the model kept for a sequence are free then."""
        host.load("""
            class TritonPythonModel:
                def execute(self, requests):
                    self.kept = requests[0].inputs()[0].as_numpy()
                    return [pb_utils.InferenceResponse()]
                def drop_sequences(self, ids):
                    self.kept = None
        """)
        host.post(wire(host, [1, 2, 3, 4]))
        assert host.receive().retained == [0]
        assert host.ask(DropSequences([1])) == Retired([1])


class TestHeld:
    """Batches behind one that waits for its client to take responses."""

    SENDS = """
    for request in requests:
        sender = request.get_response_sender()
        for value in request.inputs()[0].as_numpy():
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value]))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """

    @pytest.fixture
    def held(self, host, monkeypatch):
        """A model that may be two responses ahead, and has been asked for three."""
        monkeypatch.setattr(flow_control, "RESPONSES_AHEAD_MAX", 2)
        host.execute(self.SENDS, model_transaction_policy={"decoupled": True})
        host.post(host.wire([1, 2, 3]))
        return host

    def taken(self, host, count):
        """The next messages are so many responses."""
        for _ in range(count):
            assert type(host.receive()) is Respond

    @pytest.mark.parametrize("late", [False, True])
    def test_go_back(self, held, late):
        """Other instances may execute them: those that were there before, and those that come meanwhile."""
        if late:
            self.taken(held, 2)
            held.post(held.wire([4], 64))
            assert held.receive() == Requeue([2])
        held.post(held.wire([5], 64))
        if not late:
            self.taken(held, 2)
        assert held.receive() == Requeue([3 if late else 2])
        held.send(Credit([[1, 1]]))
        self.taken(held, 2)
        assert type(held.receive()) is Result

    def test_come_later(self, held):
        """A batch that comes when the client has taken some begins."""
        self.taken(held, 2)
        held.send(Credit([[1, 2]]))
        self.taken(held, 2)
        assert type(held.receive()) is Result
        held.post(held.wire([6], 64))
        self.taken(held, 2)
        assert type(held.receive()) is Result
