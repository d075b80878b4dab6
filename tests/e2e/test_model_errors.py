# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models with errors: the log and the index for the operator, and the messages for clients."""

import re
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.models import ECHO

INPUT = {"IN": np.array([1, 2])}
EXPLODES = "raise ValueError('exploded')"

# name: (code, config, the reason in the index)
UNLOADABLE = {
    "no_file": (None, "IN_OUT", r"Python model file not found in '.*/no_file/1/model\.py'"),
    "no_class": ("x = 1", "IN_OUT", r"Python model .*/no_class/1/model\.py does not define a class TritonPythonModel"),
    "no_execute": (
        "class TritonPythonModel:\n    pass",
        "IN_OUT",
        r"Python model .*/no_execute/1/model\.py does not implement `execute` method\.",
    ),
    "bad_syntax": ("def broken(:\n    pass", "IN_OUT", r"SyntaxError: invalid syntax \(model\.py, line \d+\)"),
    "bad_import": ("import nobody_has_this", "IN_OUT", r"ModuleNotFoundError: No module named 'nobody_has_this'"),
    "raises_at_import": (
        EXPLODES,
        "IN_OUT",
        r"Internal: ValueError: exploded\n\nAt:\n  1/model\.py\(\d+\): <module>\n",
    ),
    "raises_in_initialize": (
        f"class TritonPythonModel:\n    def initialize(self, args):\n        {EXPLODES}\n    def execute(self, r): ...",
        "IN_OUT",
        r"Internal: ValueError: exploded\n\nAt:\n  1/model\.py\(\d+\): initialize\n",
    ),
    "raises_in_auto_complete": (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        f"        {EXPLODES}\n    def execute(self, r): ...",
        "IN_OUT",
        r"Internal: ValueError: exploded\n\nAt:\n  1/model\.py\(\d+\): auto_complete_config\n",
    ),
    "wrong_auto_complete": (
        "class TritonPythonModel:\n    @staticmethod\n    def auto_complete_config(config):\n"
        "        return 1\n    def execute(self, r): ...",
        "IN_OUT",
        r"auto_complete_config function in model 'wrong_auto_complete' must return a valid pb\.ModelConfig object\.",
    ),
    "exits_at_import": ("os._exit(7)", "IN_OUT", r"the stub process of exits_at_import_0 exited with code 7 while"),
    "crashes_in_initialize": (
        "class TritonPythonModel:\n    def initialize(self, args):\n        os.kill(os.getpid(), signal.SIGSEGV)\n"
        "    def execute(self, r): ...",
        "IN_OUT",
        r"the stub process of crashes_in_initialize_0 was killed by SIGSEGV while it loaded the model",
    ),
    "sys_exits": ("sys.exit(3)", "IN_OUT", r"SystemExit: 3"),
    "unknown_field": (ECHO, 'backend: "python"\n\n  nobody: 1\n', r"/unknown_field/config\.pbtxt:3:3: .*nobody"),
    "wrong_type": (ECHO, 'backend: "python"\nmax_batch_size: "four"', r"/wrong_type/config\.pbtxt:2:17: .*"),
    "on_gpus": (
        ECHO,
        'backend: "python"\ninstance_group { kind: KIND_GPU }',
        r"Invalid argument: instance group on_gpus_0 of model on_gpus has kind KIND_GPU but no GPUs are available",
    ),
    "on_gpu_0": (
        ECHO,
        'backend: "python"\ninstance_group { kind: KIND_GPU gpus: [ 0 ] }',
        r"Invalid argument: instance group on_gpu_0_0 of model on_gpu_0 specifies invalid or unsupported gpu id 0\.",
    ),
    "no_inputs_type": (
        ECHO,
        'backend: "python"\ninput { name: "IN" dims: [ 1 ] }',
        r"Invalid argument: model input 'IN' must specify 'data_type'",
    ),
    "wrong_name": (ECHO, 'backend: "python"\nname: "another"', r"'?another'?.*|.*wrong_name.*"),
    "unknown_backend": (
        ECHO,
        'backend: "nobody"',
        r"Invalid argument: unable to find backend library for backend 'nobody', try specifying runtime on the model ",
    ),
    "ensemble": (
        ECHO,
        'platform: "ensemble"\nensemble_scheduling { step { model_name: "good" model_version: -1 } }',
        r"must specify 'input_map' in step 0 of ensemble 'ensemble'",
    ),
    "own_environment": (
        ECHO,
        'backend: "python"\nparameters { key: "EXECUTION_ENV_PATH" value { string_value: "env.tar.gz" } }',
        r"EXECUTION_ENV_PATH is 'env.tar.gz': there is nothing at .*",
    ),
    "missing_version": (ECHO, 'backend: "python"\nversion_policy { specific { versions: [ 2 ] } }', r".*version.*"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory, write_model, serving):
    """A server of everything that cannot be loaded, and of one model that can."""
    repository = tmp_path_factory.mktemp("broken")
    write_model(repository, "good", ECHO)
    for name, (code, config, _) in UNLOADABLE.items():
        if config == "IN_OUT":
            write_model(repository, name, code)
        else:
            write_model(repository, name, code, config)
    (repository / "no_version").mkdir()
    with serving(repository, "--exit-on-error=false", "--strict-readiness=false", "--log-verbose=1") as server:
        yield server


def index_of(server):
    """The rows of the repository index by the model's name."""
    with closing(server.client()) as client:
        return {row["name"]: row for row in client.get_model_repository_index()}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_model_that_cannot_be_loaded(broken, name):
    """It is unavailable with its reason, in the index and in the log, and to a client it is not there."""
    row = index_of(broken)[name]
    assert row["state"] == "UNAVAILABLE"
    assert re.search(UNLOADABLE[name][2], row["reason"])
    assert re.search(f"failed to load '{name}'(?: version 1)?: .*?{UNLOADABLE[name][2]}", broken.log)
    status, message = broken.refusal(name, INPUT)
    assert status in (404, 503)
    assert message.startswith(f"Request for unknown model: '{name}' ")
    assert ", because it failed to load: " in message
    assert message.endswith(" (the repository index and the server's log have more)")
    # It names files, and no folders of this host.
    assert not re.search(r"""(^|[\s'"(])/\w""", message)


def test_traceback_of_a_load_is_in_the_log(broken):
    """An exception during a load is in the log with its traceback, under the instance's name."""
    for name in ("raises_at_import", "raises_in_initialize", "raises_in_auto_complete"):
        lines = [line for line in broken.log.splitlines() if f"{name}_0: " in line]
        assert any("Traceback (most recent call last):" in line for line in lines)
        assert any(f"{name}/1/model.py" in line for line in lines)
        assert any("ValueError: exploded" in line for line in lines)


def test_traceback_of_a_load_has_the_models_lines(broken):
    """It has none of pyruntime, nor of the import system, and the record names the model's file."""
    for name in ("raises_at_import", "raises_in_initialize", "raises_in_auto_complete", "bad_syntax"):
        lines = [line for line in broken.log.splitlines() if f"{name}_0: " in line]
        files = re.findall(r' File "(.*?)"', "\n".join(lines))
        assert files
        assert all(file.endswith(f"{name}/1/model.py") for file in files)
        assert all(f"{name}/1/model.py:" in line.split("]")[0] for line in lines)
    assert "did not finish within" not in broken.log


def test_the_others_are_served(broken):
    """With --exit-on-error=false and without strict readiness a server is ready with the models that do load."""
    assert broken.is_ready()
    assert broken.infer("good", INPUT).as_numpy("OUT").tolist() == [1, 2]
    with closing(broken.client()) as client:
        assert client.is_model_ready("good")
        assert not client.is_model_ready("bad_syntax")


def test_tables_of_the_start(broken):
    """The log has Triton's two tables: of the backends, if it is verbose, and of all models, versions and states."""
    assert re.search(r"^\+-+\+-+\+-+\+\n\| Backend +\| Path +\| Config +\|$", broken.log, re.M)
    assert re.search(r"^\+-+\+-+\+-+\+\n\| Model +\| Version +\| Status +\|$", broken.log, re.M)
    assert re.search(r"^\| good +\| 1 +\| READY +\|$", broken.log, re.M)
    assert re.search(r"^\| bad_syntax +\| 1 +\| UNAVAILABLE: Internal: SyntaxError.*\|$", broken.log, re.M)
    for name in UNLOADABLE:
        assert re.search(rf"^\| {name} +\| 1? +\| UNAVAILABLE: ", broken.log, re.M)


def test_strict_readiness(model, serve, wait_until):
    """By default a model that failed to load keeps the server from being ready, but live, and serving the rest."""
    model("good", ECHO)
    model("no_class", "x = 1")
    server = serve("--exit-on-error=false", ready=False)
    wait_until(lambda: "| Model " in server.log)
    assert server.request("GET", "/v2/health/live").status == 200
    assert server.request("GET", "/v2/health/ready").status == 400
    assert server.infer("good", INPUT).as_numpy("OUT").tolist() == [1, 2]


def test_exit_on_error(model, serve):
    """By default a model that fails to load ends the server with status 1, and nothing is left of the others."""
    model("good", ECHO)
    model("no_class", "x = 1")
    server = serve(ready=False)
    server.family()
    assert server.wait_exit() == 1
    assert "failed to load 'no_class' version 1: Internal: Python model " in server.log
    assert "failed to load all models; --exit-on-error=false serves those that did load" in server.log
    assert re.search(r"^\| no_class +\| 1 +\| UNAVAILABLE: Internal: Python model .*\|$", server.log, re.M)


# The first of its numbers selects the action.
ACTS = """
class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            array = request.inputs()[0].as_numpy()
            responses.append(getattr(self, "do_" + request.request_id())(array))
        if responses and isinstance(responses[0], tuple):
            return responses[0][0]
        return responses

    def answer(self, array, name="OUT"):
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array)])

    def do_raise(self, array):
        raise ValueError("exploded")

    def do_exit(self, array):
        sys.exit(4)

    def do_interrupt(self, array):
        raise KeyboardInterrupt

    def do_raise_from_elsewhere(self, array):
        json.loads("{")

    def do_none(self, array):
        return (None,)

    def do_wrong_return(self, array):
        return ({},)

    def do_too_few(self, array):
        return ([],)

    def do_too_many(self, array):
        return ([self.answer(array), self.answer(array)],)

    def do_wrong_type(self, array):
        return 1

    def do_none_inside(self, array):
        return None

    def do_unknown_output(self, array):
        return self.answer(array, "NOBODY")

    def do_no_output(self, array):
        return pb_utils.InferenceResponse([])

    def do_error_and_outputs(self, array):
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)], error=pb_utils.TritonError("refused"))

    def do_other_datatype(self, array):
        return self.answer(array.astype(np.float32))

    def do_speak(self, array):
        print("printed by execute")
        print("printed to stderr", file=sys.stderr)
        os.write(1, b"written without python\\n")
        print("two\\nlines")
        print("not ended", end="")
        sys.stdout.flush()
        logging.getLogger("any").warning("logged as a warning")
        logging.info("logged as information")
        logging.debug("logged for nobody")
        pb_utils.Logger.log_error("an error of the Logger")
        pb_utils.Logger.log_info("information of the Logger")
        pb_utils.Logger.log_verbose("verbose of the Logger")
        pb_utils.Logger.log("said by the Logger", pb_utils.Logger.WARNING)
        return self.answer(array)
"""
for code in (
    "UNKNOWN",
    "INTERNAL",
    "NOT_FOUND",
    "INVALID_ARG",
    "UNAVAILABLE",
    "UNSUPPORTED",
    "ALREADY_EXISTS",
    "CANCELLED",
):
    ACTS += f"""
    def do_{code}(self, array):
        return pb_utils.InferenceResponse(error=pb_utils.TritonError("refused", pb_utils.TritonError.{code}))
"""
ASYNC = """
import asyncio

class TritonPythonModel:
    async def execute(self, requests):
        responses = [await self.answer(request) for request in requests]
        return responses

    async def answer(self, request):
        await asyncio.sleep(0)
        array = request.inputs()[0].as_numpy()
        if array[0] < 0:
            raise ValueError("exploded")
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", 2 * array)])
"""


@pytest.fixture(scope="module")
def acting(tmp_path_factory, write_model, serving):
    """A server of models that load, and fail at a client's command."""
    repository = tmp_path_factory.mktemp("acting")
    write_model(repository, "acts", ACTS)
    write_model(repository, "async", ASYNC)
    with serving(repository) as server:
        yield server


FAILED = "Failed to process the request(s) for model 'acts_0', message: "


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("raise", r"ValueError: exploded\n\nAt:\n  1/model\.py\(\d+\): do_raise\n  1/model\.py\(\d+\): execute\n"),
        ("exit", r"SystemExit: 4\n\nAt:\n  1/model\.py\(\d+\): do_exit\n  1/model\.py\(\d+\): execute\n"),
        (
            "interrupt",
            r"KeyboardInterrupt: \n\nAt:\n  1/model\.py\(\d+\): do_interrupt\n  1/model\.py\(\d+\): execute\n",
        ),
        (
            "raise_from_elsewhere",
            r"JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 \(char 1\)\n\nAt:\n"
            r"  decoder\.py\(\d+\): raw_decode\n(  \w+\.py\(\d+\): \w+\n)+"
            r"  1/model\.py\(\d+\): do_raise_from_elsewhere\n  1/model\.py\(\d+\): execute\n",
        ),
        ("wrong_return", r"Expected a list in the execute return, found type '<class 'dict'>'\."),
        (
            "too_few",
            r"Number of InferenceResponse objects do not match the number of InferenceRequest objects\. "
            r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:0\n",
        ),
        (
            "too_many",
            r"Number of InferenceResponse objects do not match the number of InferenceRequest objects\. "
            r"InferenceRequest\(s\) size is:1, and InferenceResponse\(s\) size is:2\n",
        ),
        (
            "wrong_type",
            r"Expected an 'InferenceResponse' object in the execute function return list, found type '<class 'int'>'\.",
        ),
    ],
)
def test_execute_that_fails(acting, act, message):
    """The client gets the exception and its place in the model, without server folders; the next request works."""
    status, found = acting.refusal("acts", INPUT, request_id=act)
    assert status == 500
    assert re.fullmatch(re.escape(FAILED) + message, found)
    assert acting.infer("acts", INPUT, request_id="speak").as_numpy("OUT").tolist() == [1, 2]


@pytest.mark.parametrize(
    ("act", "message"),
    [
        ("none", "execute returned None; is `return responses` missing?"),
        ("none_inside", "the model has let go of the request without a response"),
    ],
)
def test_none_in_place_of_a_response(acting, act, message):
    """A request that the model neither answers nor keeps is answered for it, be it alone or in the middle of others."""
    assert acting.refusal("acts", INPUT, request_id=act) == (500, message)


def test_traceback_of_execute_is_in_the_log(acting):
    """An exception of execute is in the log with its traceback, whole paths and the instance's name."""
    before = len(acting.log)
    acting.refusal("acts", INPUT, request_id="raise")
    log = acting.log[before:]
    assert "acts_0: execute failed" in log
    assert "acts_0: Traceback (most recent call last):" in log
    assert "/acts/1/model.py" in log
    assert "acts_0: ValueError: exploded" in log


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("UNKNOWN", 400),
        ("INTERNAL", 500),
        ("NOT_FOUND", 404),
        ("INVALID_ARG", 400),
        ("UNAVAILABLE", 503),
        ("UNSUPPORTED", 501),
        ("ALREADY_EXISTS", 400),
        ("CANCELLED", 400),
    ],
)
def test_codes_of_a_response(acting, code, status):
    """A TritonError in a response is that request's error alone, with the status of its code and the model's words."""
    assert acting.refusal("acts", INPUT, request_id=code) == (status, "refused")


def test_outputs_of_an_error_are_dropped(acting):
    """A response with an error has no outputs; its code is INTERNAL where the model says none."""
    assert acting.refusal("acts", INPUT, request_id="error_and_outputs") == (500, "refused")


def test_outputs_that_are_not_as_configured(acting):
    """A client gets any datatype, and no output that is not declared; the log names the model's file, once."""
    said = (
        r"output 'NOBODY' of model 'acts' is dropped, because the configuration declares 'OUT' \(/.*/acts/1/model.py;",
        r"output 'OUT' of model 'acts' has datatype FP32, and the configuration says INT64 \(/.*/acts/1/model.py;",
    )
    for _ in range(2):
        result = acting.infer("acts", INPUT, request_id="unknown_output")
        assert result.get_response()["outputs"] == []
        result = acting.infer("acts", INPUT, request_id="other_datatype")
        assert result.as_numpy("OUT").dtype == np.float32
    assert [len(re.findall(sentence, acting.log)) for sentence in said] == [1, 1]
    assert acting.infer("acts", INPUT, request_id="no_output").get_response()["outputs"] == []


def test_what_a_model_says(acting, wait_until):
    """Prints and log records of a model are in the log, line by line, with the instance's name and their level."""
    acting.infer("acts", INPUT, request_id="speak")
    lines = [
        r"I.* acts_0: printed by execute",
        r"I.* acts_0: printed to stderr",
        r"I.* acts_0: written without python",
        r"I.* acts_0: two",
        r"I.* acts_0: lines",
        r"W.* \S+/acts/1/model\.py:\d+\] acts_0: logged as a warning",
        r"I.* \S+/acts/1/model\.py:\d+\] acts_0: logged as information",
        r"E.* \S+/acts/1/model\.py:\d+\] acts_0: an error of the Logger",
        r"I.* \S+/acts/1/model\.py:\d+\] acts_0: information of the Logger",
        r"W.* \S+/acts/1/model\.py:\d+\] acts_0: said by the Logger",
    ]
    for line in lines:
        # Output and responses come over different pipes.
        wait_until(lambda line=line: re.search(f"^{line}$", acting.log, re.M))
    assert "logged for nobody" not in acting.log
    assert "verbose of the Logger" not in acting.log


def test_async_execute(acting):
    """execute may be a coroutine, which is awaited; its exception is the client's error as usual."""
    assert acting.infer("async", INPUT).as_numpy("OUT").tolist() == [2, 4]
    status, message = acting.refusal("async", {"IN": np.array([-1])})
    assert status == 500
    assert message.startswith(
        "Failed to process the request(s) for model 'async_0', message: ValueError: exploded\n\nAt:"
    )
    assert acting.infer("async", INPUT).as_numpy("OUT").tolist() == [2, 4]


def test_finalize_that_raises(model, serve):
    """An exception of finalize is in the log, and has no other effect."""
    model("bad_end", ECHO + f"\n    def finalize(self):\n        {EXPLODES}\n")
    server = serve()
    assert server.infer("bad_end", INPUT).as_numpy("OUT").tolist() == [1, 2]
    server.stop()
    assert "bad_end_0: finalize failed" in server.log
    assert "bad_end_0: ValueError: exploded" in server.log


def test_unknown_repository(tmp_path, serve):
    """A repository that is not there ends the server with status 1 and a sentence."""
    server = serve(f"--model-repository={tmp_path}/nowhere", ready=False)
    assert server.wait_exit() == 1
    assert f"model repository '{tmp_path}/nowhere' cannot be read: No such file or directory" in server.log
    assert "Traceback" not in server.log


def test_load_through_the_api_is_not_there(acting):
    """Models are loaded at the start only; asking for more is refused."""
    with closing(acting.client()) as client, pytest.raises(InferenceServerException):
        client.load_model("acts")
