# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The modules that models import, in stubs: of the server's own Python, and of one that has nothing of ours."""

import numpy as np
import pytest

CONFIG = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "FREE" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "LARGE" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
MODEL = """
import c_python_backend_utils
import triton_python_backend_utils

assert triton_python_backend_utils is pb_utils
for name in c_python_backend_utils.__all__:
    assert getattr(pb_utils, name, getattr(c_python_backend_utils, name)) is getattr(c_python_backend_utils, name)

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            assert isinstance(request.get_response_sender(), c_python_backend_utils.InferenceResponseSender)
            assert isinstance(request.trace(), c_python_backend_utils.InferenceTrace)
            array = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            free = np.array([pb_utils.shared_memory.free_memory()])
            outputs = [pb_utils.Tensor("FREE", free), pb_utils.Tensor("LARGE", array)]
            responses.append(pb_utils.InferenceResponse(outputs))
        return responses
"""


def check(server):
    """The model answers, and its responses leave nothing in its memory."""
    free = set()
    for size in (1, 100_000, 1):
        result = server.infer("importing", {"IN": np.zeros(size, np.int64)})
        assert result.as_numpy("LARGE").shape == (size,)
        free.add(result.as_numpy("FREE").item())
    (left,) = free
    assert left > 1 << 20


def test_in_our_own_python(model, serve):
    """Both modules exist, with the objects that they share, and with the function for leak tests."""
    model("importing", MODEL, CONFIG)
    check(serve())


@pytest.mark.parametrize("other_environment", [8], indirect=True, ids=["python3.8"])
def test_in_another_python(model, serve, other_environment):
    """The modules exist without an installation of pyruntime."""
    environment = f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{other_environment}" }} }}'
    model("importing", MODEL, CONFIG, environment)
    check(serve())
