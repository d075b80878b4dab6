# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models made on the spot, for the tests of what tests models."""

import textwrap

import pytest

IMPORTS = """
import asyncio, gc, json, logging, pathlib, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

"""
# Any number of integers in, any number out.
IN_OUT = """
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""
DECOUPLED = IN_OUT + "model_transaction_policy { decoupled: true }\n"
# Code that the models below share: reading the input and making the response.
ANSWER = """
def array(request):
    return pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()

def answer(values):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(values, dtype=np.int64).reshape(-1))])

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
"""


@pytest.fixture
def write_model(tmp_path):
    """Writes the folder of a model and returns its path: `source` is the code after the imports."""

    def write(source, config=IN_OUT, name="m", version="1", **files):
        folder = tmp_path / name
        (folder / version).mkdir(parents=True)
        (folder / version / "model.py").write_text(IMPORTS + ANSWER + textwrap.dedent(source))
        if config is not None:
            (folder / "config.pbtxt").write_text(config)
        for path, text in files.items():
            target = folder / path.replace("__", "/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.with_suffix(".py").write_text(text)
        return folder

    return write


@pytest.fixture
def load(load_model, write_model):
    """Writes a model and loads it; `options` are those of `load_model`."""

    def load(source, config=IN_OUT, name="m", files=None, **options):
        return load_model(write_model(source, config, name, **(files or {})), **options)

    return load


@pytest.fixture
def execute(load):
    """Loads a model of which only the body of `execute` matters."""

    def load_body(body, config=IN_OUT, **options):
        source = "class TritonPythonModel:\n    def execute(self, requests):\n"
        return load(source + textwrap.indent(textwrap.dedent(body), " " * 8), config, **options)

    return load_body
