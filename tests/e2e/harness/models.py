# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Model folders written for one test."""

import textwrap
from pathlib import Path

IMPORTS = """
import json, logging, os, signal, sys, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils

"""
CODE = Path(__file__).parent.parent / "models"
# Gives back its input.
ECHO = (CODE / "echo.py").read_text()
# Answers a request as often as it says, with the number of each response. It is decoupled.
COUNT = (CODE / "count.py").read_text()
# Gives back its input. Waits at its gate, a FIFO, in the method that is named in a file; tells of the end.
GATED = """
class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]
        self.pass_gate("initialize")

    def execute(self, requests):
        self.pass_gate("execute")
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())])
                for request in requests]

    def finalize(self):
        with open(self.folder + "/finalized", "w"):
            pass
        self.pass_gate("finalize")

    def pass_gate(self, method):
        if os.path.exists(self.folder + "/gate_" + method):
            with open(self.folder + "/at_gate", "w"):
                pass
            with open(self.folder + "/gate_" + method) as gate:
                gate.read()
"""
# The tensors of most small models: any number of integers in, any number out.
IN_OUT = """
backend: "python"
input [ { name: "IN" data_type: TYPE_INT64 dims: [ -1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT64 dims: [ -1 ] } ]
"""


def write_model(repository: Path, name: str, code: str | None, config: str | None = IN_OUT, more: str = "") -> Path:
    folder = repository / name
    (folder / "1").mkdir(parents=True)
    if code is not None:
        (folder / "1" / "model.py").write_text(IMPORTS + textwrap.dedent(code))
    if config is not None:
        (folder / "config.pbtxt").write_text(config + more)
    return folder


def parameters(**values):
    """Parameters of a model's configuration."""
    entry = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'
    return "".join(entry.format(*item) for item in values.items())
