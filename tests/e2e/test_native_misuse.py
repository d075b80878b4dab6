# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Backends that break the rules: the request concerned ends with an error, and the server goes on.

The parameters of a model say what tests/native/misuse.cc does. The error that it gets is the parameter "outcome" of the
response, or in the log. Triton crashes at some of this, or lets the client wait for ever.
"""

import re
import shutil
import subprocess
from contextlib import closing

import numpy as np
import pytest

from .harness.models import parameters

CONFIG = """
backend: "misuse"
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"
INPUT = {"INPUT0": np.array([7], np.int32)}

LIVED = "sent no final response: its backend released the request, and can send none now"
# The errors that the backend gets; the client gets its answer all the same.
OUTCOMES = {
    "release_null": "Invalid argument: TRITONBACKEND_RequestRelease: request is null",
    "send_null": "Invalid argument: TRITONBACKEND_ResponseSend: response is null",
    "delete_response": "no error",
    "unknown_input": "Invalid argument: [request id: <id_unknown>] unknown request input name NONE",
    "input_out_of_range": "Invalid argument: [request id: <id_unknown>] out of bounds index 99: request has 1 inputs",
    "buffer_out_of_range": "no error",
    "parameter_out_of_range": "Invalid argument: out of bounds index 99: request has 0 parameters",
    "buffer_twice": "Already exists: allocated buffer for output 'OUTPUT0' already exists",
}
# The client gets its answer, though the backend does more, or less, than it should.
ANSWERED = ["", "release_without_flags", "error_after_response", "error_after_release"]
# The errors that the backend gets after its client has been answered.
LATE = {
    "respond_after_final": "has sent the final response to request '' before: what comes after it is not sent",
    "final_twice": "has sent the final response to request '' before: what comes after it is not sent",
}
# Malformed outputs, with the client's error.
BROKEN = {
    "no_buffer": "output 'OUTPUT0' holds 0 bytes, expected 4",
    "small_buffer": "output 'OUTPUT0' holds 4 bytes, expected 16",
    "huge_buffer": "output 'OUTPUT0' holds 0 bytes, expected 1152921504606846976",
    "wrong_bytes": "output 'OUTPUT0' ends within element 0",
    "negative_shape": "output 'OUTPUT0' holds 4 bytes, expected -4",
    "never_respond": f"model 'm_never_respond' {LIVED}",
    "never_final": f"model 'm_never_final' {LIVED}",
}
# Outputs that the model does not have: the response has none, and the backend gets an error.
UNKNOWN = {
    "no_output": "no error",
    "unknown_output": "Invalid argument: unexpected inference output 'NONE' for model 'm_unknown_output'",
    "name_of_no_text": "Invalid argument: unexpected inference output '\ufffd' for model 'm_name_of_no_text'",
}


def install(folder, name, library):
    """Make a library the backend of that name."""
    (folder / name).mkdir()
    shutil.copy(library, folder / name / f"libtriton_{name}.so")


@pytest.fixture(scope="module")
def backends(install_backends):
    """The option that says where the backend is."""
    return f"--backend-directory={install_backends('misuse')}"


@pytest.fixture(scope="module")
def server(tmp_path_factory, serving, write_model, backends):
    """A server of every misuse that leaves it as it was."""
    repository = tmp_path_factory.mktemp("misuse")
    for name in [*OUTCOMES, *ANSWERED, *LATE, *BROKEN, *UNKNOWN]:
        write_model(repository, f"m_{name}", None, CONFIG, parameters(MISUSE=name))
    write_model(repository, "ten_threads", None, CONFIG, parameters(MISUSE="ten_threads") + DECOUPLED)
    with serving(repository, backends) as server:
        yield server


def ask(server, model):
    """The document that answers a request."""
    return server.infer(model, INPUT, output_binary=False, outputs=["OUTPUT0"]).get_response()


def works(server, model="m_"):
    """Whether a model that is used properly answers."""
    return ask(server, model)["outputs"][0]["data"] == [1]


@pytest.mark.parametrize("name", OUTCOMES)
def test_what_the_backend_is_told(server, name):
    """Reading something that does not exist is an error, and the request can be answered nevertheless."""
    found = ask(server, f"m_{name}")
    assert found["parameters"] == {"outcome": OUTCOMES[name]}
    assert found["outputs"][0]["data"] == [1]


@pytest.mark.parametrize("name", ANSWERED)
def test_answered_all_the_same(server, name):
    """A response that was sent reaches its client, whatever the backend does afterwards."""
    assert works(server, f"m_{name}")
    assert works(server)


@pytest.mark.parametrize("name", LATE)
def test_too_late(server, wait_until, name):
    """A response after the final one is not sent, and is an error in the backend."""
    assert works(server, f"m_{name}")
    line = f"misuse {name}: Invalid argument: model 'm_{name}' {LATE[name]}"
    wait_until(lambda: line in server.log)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers(server, name):
    """An output that is malformed, or never comes, is an error with the reason."""
    status, message = server.refusal(f"m_{name}", INPUT, output_binary=False, outputs=["OUTPUT0"])
    assert (status, message) == (500, BROKEN[name])
    assert works(server)


@pytest.mark.parametrize("name", UNKNOWN)
def test_outputs_that_are_none(server, name):
    """An output that the model does not have is dropped; a name of any bytes is a text to clients."""
    found = server.infer(f"m_{name}", INPUT).get_response()
    assert found["parameters"]["outcome"] == UNKNOWN[name]
    assert found["outputs"] == []


def test_an_output_that_is_not_as_configured_is_said_once(serve, model, backends, wait_until):
    """Its datatype, its shape, and a name that the configuration does not declare; in both places of a backend."""
    wrong = CONFIG.replace('"OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ]', '"OUTPUT0" data_type: TYPE_FP32 dims: [ 2 ]')
    for mode in ("in_process", "process"):
        model(f"wrong_{mode}", None, wrong, parameters(EXECUTION_MODE=mode))
        model(f"unknown_{mode}", None, CONFIG, parameters(MISUSE="unknown_output", EXECUTION_MODE=mode))
    server = serve(backends)
    for mode in ("in_process", "process"):
        for _ in range(2):
            assert ask(server, f"wrong_{mode}")["outputs"][0]["datatype"] == "INT32"
            server.infer(f"unknown_{mode}", INPUT)
        subject = f"output 'OUTPUT0' of model 'wrong_{mode}' has"
        lines = [
            f"{subject} datatype INT32, and the configuration says FP32",
            f"{subject} shape [1], and the configuration says [2]",
            f"unexpected inference output 'NONE' for model 'unknown_{mode}', whose configuration does not declare it",
        ]
        for line in lines:
            wait_until(lambda line=line: line in server.log)
            assert server.log.count(line) == 1


def test_ten_threads(server):
    """Responses may come from any thread, at once; all of them arrive, and then the end."""
    document = {"INPUT0": [7], "parameters": {}}
    found = [event["OUTPUT0"] for event in server.stream("ten_threads", **document)]
    assert sorted(found) == list(range(10))


def test_requests_that_are_never_given_back(serve, model, backends):
    """A backend that keeps requests comes to no end; the server does, and says whose fault it was."""
    model("keeps", None, CONFIG, parameters(MISUSE="never_release"))
    server = serve(backends, "--exit-timeout-secs=1")
    assert works(server, "keeps")
    server.stop()
    assert re.search(r"keeps_0: did not finish within \d+ s; what it holds is not freed", server.log)


# Faults at an entry point, and their messages.
FAULTS = {
    "error": "failed at {at}",
    "throw_exception": "TRITONBACKEND_{function} threw an exception: thrown at {at}",
    "throw_int": "TRITONBACKEND_{function} threw something that is no exception",
}
FUNCTIONS = {
    "initialize": "Initialize",
    "attribute": "GetBackendAttribute",
    "finalize": "Finalize",
    "model_initialize": "ModelInitialize",
    "model_finalize": "ModelFinalize",
    "instance_initialize": "ModelInstanceInitialize",
    "instance_finalize": "ModelInstanceFinalize",
    "instance_ready": "ModelInstanceReady",
    "execute": "ModelInstanceExecute",
}


def fault(at, what):
    """The message for a fault at an entry point."""
    return FAULTS[what].format(at=at, function=FUNCTIONS[at])


def reason(server, name):
    """Why a model is not served."""
    with closing(server.client()) as client:
        (row,) = (row for row in client.get_model_repository_index() if row["name"] == name)
    assert row["state"] == "UNAVAILABLE"
    return row["reason"]


# Entry points of the backend itself: each fault is one of a backend of its own, told by the command line.
OF_BACKENDS = ["initialize", "attribute", "finalize"]
# Libraries that cannot be loaded, by their options, with the errors.
UNLOADABLE = {
    "-DNO_EXECUTE": "unable to find required entrypoint 'TRITONBACKEND_ModelInstanceExecute' in shared library",
    "-DAPI_MINOR=99": "triton backend API version does not support this backend",
    "-Wl,-soname,libtriton_python.so": "is Triton's own Python backend. Models in Python are run by pyruntime itself",
    "-Wl,--no-as-needed,-lmissing": "libmissing.so: cannot open shared object file: No such file or directory; model",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, serving, write_model, compile_library):
    """A server of models whose backend fails: at each entry point in each way, or as it is loaded."""
    repository, folder, links = (tmp_path_factory.mktemp(name) for name in ("faulty", "backends", "links"))
    library = compile_library("misuse.cc")
    install(folder, "misuse", library)
    write_model(repository, "m_", None, CONFIG)
    options = []
    for at in FUNCTIONS:
        for what in FAULTS:
            name = f"{at}_{what}"
            if at in OF_BACKENDS:
                install(folder, name, library)
                options += [f"--backend-config={name},AT={at}", f"--backend-config={name},DO={what}"]
                write_model(repository, name, None, CONFIG.replace("misuse", name))
            else:
                write_model(repository, name, None, CONFIG, parameters(AT=at, DO=what))
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", links / "libmissing.so"], check=True)
    for index, option in enumerate(UNLOADABLE):
        install(folder, f"unloadable{index}", compile_library("misuse.cc", f"-L{links}", option))
        write_model(repository, f"unloadable{index}", None, CONFIG.replace("misuse", f"unloadable{index}"))
    (links / "libmissing.so").unlink()
    options += [f"--backend-directory={folder}", "--exit-on-error=false", "--strict-readiness=false"]
    with serving(repository, *options) as server:
        yield server
    for at in ("finalize", "model_finalize", "instance_finalize"):
        for what in FAULTS:
            assert fault(at, what) in server.log


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("at", ["initialize", "attribute", "model_initialize", "instance_initialize"])
def test_faults_at_load(faulty, at, what):
    """A backend that fails to initialize, or throws, leaves its model unavailable, for a reason of its own code."""
    code = "Unavailable" if what == "error" else "Internal"
    assert reason(faulty, f"{at}_{what}") == f"{code}: {fault(at, what)}"
    assert works(faulty)


@pytest.mark.parametrize("what", FAULTS)
def test_faults_at_execute(faulty, what):
    """Requests of a batch that fails as a whole are answered with its error."""
    status, message = faulty.refusal(f"execute_{what}", INPUT)
    assert fault("execute", what) in message
    assert status == (503 if what == "error" else 500)
    assert works(faulty)


@pytest.mark.parametrize("what", FAULTS)
def test_faults_at_ready(faulty, wait_until, what):
    """A model whose backend says that it is not ready is not; it still takes requests."""
    assert faulty.request("GET", f"/v2/models/instance_ready_{what}/ready").status == 400
    wait_until(lambda: fault("instance_ready", what) in faulty.log)
    assert works(faulty, f"instance_ready_{what}")


@pytest.mark.parametrize("what", FAULTS)
@pytest.mark.parametrize("at", ["finalize", "model_finalize", "instance_finalize"])
def test_faults_at_unload(faulty, at, what):
    """A backend that fails to finalize serves until then; its error is in the log when the server has ended."""
    assert works(faulty, f"{at}_{what}")


@pytest.mark.parametrize("option", UNLOADABLE)
def test_libraries_that_cannot_be_loaded(faulty, option):
    """The reason is in the repository index, where the model's owner looks first."""
    assert UNLOADABLE[option] in reason(faulty, f"unloadable{list(UNLOADABLE).index(option)}")
