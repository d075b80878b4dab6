# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A unit test of a model gets the same outputs and errors as a client of the server."""

import warnings

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from pyruntime.testing import ContradictionWarning, InferenceError, load_model

CONFIG = """
input [ { name: "COMMAND" data_type: TYPE_STRING dims: [ 1 ] }, { name: "MORE" data_type: TYPE_FP32 dims: [ -1 ]
          optional: true } ]
output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
# The command is an expression; the response has its value.
MODEL = """
def text(value):
    return pb_utils.Tensor("OUT", np.array([str(value).encode()], dtype=np.object_))

def call(name, command="1", decoupled=False, **options):
    inputs = [pb_utils.Tensor("COMMAND", np.array([command.encode()], dtype=np.object_))]
    response = pb_utils.InferenceRequest(model_name=name, inputs=inputs, **options).exec(decoupled=decoupled)
    responses = list(response) if decoupled else [response]
    return [
        (each.error().message(), int(each.error().code())) if each.has_error()
        else [tensor.as_numpy().tolist() for tensor in each.output_tensors()]
        for each in responses
    ]

def fail(what):
    raise ValueError(what)

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            command = pb_utils.get_input_tensor_by_name(request, "COMMAND").as_numpy()[0].decode()
            value = eval(command)
            if value is None or isinstance(value, pb_utils.InferenceResponse):
                responses.append(value)
            else:
                responses.append(pb_utils.InferenceResponse([text(value)]))
        return responses
"""
DECOUPLED = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(2):
                array = np.array([str(number).encode()], dtype=np.object_)
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)]))
            sender.send(flags=1)
"""
COMMANDS = [
    "request.request_id()",
    "(request.parameters(), request.correlation_id(), request.flags(), request.timeout())",
    "request.requested_output_names()",
    "sorted(tensor.name() for tensor in request.inputs())",
    "pb_utils.get_model_dir().rpartition('/')[2]",
    "fail('on purpose')",
    "5 / 0",
    "sys.exit(3)",
    "pb_utils.InferenceResponse([pb_utils.Tensor('X', np.zeros(1))])",
    "pb_utils.InferenceResponse(error=pb_utils.TritonError('no', pb_utils.TritonError.NOT_FOUND))",
    "pb_utils.InferenceResponse([])",
    "request.get_response_sender().send(pb_utils.InferenceResponse([text('sent')]), 1)",
    "request.get_response_sender().send(flags=1)",
    "request.get_response_sender().send(None)",
    "request.get_response_sender().send(pb_utils.InferenceResponse([]), 7)",
    "request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)",
    "None",
    "call('other')",
    "call('other', 'fail(1)')",
    "call('other', '2 / 0')",
    "call('other', 'json.loads(request.parameters())', parameters={'a': 1})",
    "call('other', 'request.correlation_id()', correlation_id='seq', flags=3)",
    "call('other', requested_output_names=['X'])",
    "call('other', requested_output_names=['OUT'])",
    "call('other', model_version=7)",
    "call('other', model_version=1)",
    "call('other', decoupled=True)",
    "call('nobody')",
    "call('nobody', decoupled=True)",
    "call('decoupled')",
    "call('decoupled', decoupled=True)",
    "call('')",
    "request.exec()",
    "pb_utils.is_model_ready('other')",
    "pb_utils.is_model_ready('nobody')",
    "pb_utils.is_model_ready('other', '7')",
    "pb_utils.is_model_ready('other', 'x')",
    "pb_utils.MetricFamily('x', 'y', pb_utils.MetricFamily.COUNTER).Metric().value()",
    "pb_utils.MetricFamily('1', 'y', pb_utils.MetricFamily.COUNTER)",
    "pb_utils.MetricFamily('x', 'y', pb_utils.MetricFamily.GAUGE).Metric(buckets=[1])",
    "pb_utils.Tensor('', np.zeros(1))",
]
INPUTS = [
    {},
    {"COMMAND": np.array([["1"]], dtype=np.object_)},
    {"COMMAND": np.array([1])},
    {"COMMAND": np.array(["1"], dtype=np.object_), "X": np.zeros(1)},
    {"COMMAND": np.array(["1"], dtype=np.object_), "MORE": np.zeros(1)},
]


@pytest.fixture(scope="module")
def repository(tmp_path_factory, write_model):
    """The models that are asked, and those that they call."""
    folder = tmp_path_factory.mktemp("models")
    write_model(folder, "asked", MODEL, CONFIG)
    write_model(folder, "other", MODEL, CONFIG)
    write_model(folder, "decoupled", DECOUPLED, CONFIG, "model_transaction_policy { decoupled: true }")
    return folder


@pytest.fixture(scope="module")
def server(serving, repository):
    """A server of them."""
    with serving(repository) as server:
        yield server


@pytest.fixture(scope="module")
def loaded(repository):
    """The model that is asked, loaded."""
    callees = {name: repository / name for name in ("other", "decoupled")}
    with load_model(repository / "asked", callees=callees) as model:
        yield model


def by_client(server, inputs, **options):
    """The outputs, or the error, for a client of the server."""
    try:
        result = server.infer("asked", inputs, **options)
    except InferenceServerException as exc:
        return exc.message()
    return {each["name"]: result.as_numpy(each["name"]).tolist() for each in result.get_response()["outputs"]}


def in_test(model, inputs, **options):
    """The outputs, or the error, for a unit test."""
    try:
        result = model.infer(inputs, **options)
    except InferenceError as exc:
        return exc.message
    return {name: array.tolist() for name, array in result.outputs.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(server, loaded, command):
    """Every command of the model has the same outcome. A test is warned of outputs that the server drops."""
    inputs = {"COMMAND": np.array([command], dtype=np.object_)}
    expected = by_client(server, inputs, request_id="7", sequence_id=5, sequence_start=True, timeout=9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ContradictionWarning)
        assert in_test(loaded, inputs, request_id="7", correlation_id=5, sequence_start=True, timeout=9) == expected


@pytest.mark.parametrize("inputs", INPUTS, ids=lambda inputs: " ".join(inputs) or "none")
def test_refusals(server, loaded, inputs):
    """Every refusal of the server is the same."""
    assert in_test(loaded, inputs) == by_client(server, inputs)


def test_outputs_asked_for(server, loaded):
    """Those that there are, and those that there are not."""
    inputs = {"COMMAND": np.array(["request.requested_output_names()"], dtype=np.object_)}
    for names in (["OUT"], ["X"]):
        assert in_test(loaded, inputs, requested_outputs=names) == by_client(server, inputs, outputs=names)


def test_configuration(server, loaded):
    """The model has the same configuration."""
    config = server.request("GET", "/v2/models/asked/config").body
    assert loaded._instance.spec.json == config
