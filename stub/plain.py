# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Requests of models, by native code where they are plain, or by Python: see utils/fast_path.py.

Native code makes the same objects of the same classes, whose attributes it sets as Python does. What is not plain
(memory of clients, GPUs, texts) goes to the functions in Python that it stands for, which are the reference. See
native/plain.h.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Set, Tuple

import numpy as np

from pyruntime.stub.input_lifetime import held_alone
from pyruntime.stub.memory import Regions
from pyruntime.stub.pb_utils import functions
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.tensor import DATATYPE_NAMES, DTYPES, Tensor
from pyruntime.stub.responses import ResponseWriter
from pyruntime.utils import fast_path

__all__ = ["get_input_tensor_by_name", "make_requests", "response_writer", "result", "still_held"]

# Writes the responses to requests as a Result has them. None if any of them is not plain: then nothing has changed.
WriteResponses = Callable[[Any, List[InferenceRequest]], Optional[bytes]]


def requests_from_wires(wires: List[Any], region: Any, outputs: Set[str], batch: int) -> List[InferenceRequest]:
    """The requests of a batch, to a model with these outputs. The first one has the serial `batch`."""
    requests = []
    for serial, each in enumerate(wires, batch):  # faster than a comprehension
        requests.append(InferenceRequest._from_wire(region, each, outputs, serial))
    return requests


def no_writer(writer: ResponseWriter) -> WriteResponses:
    """Nothing is plain."""
    return lambda responses, requests: None


# What native code stands for, and calls where anything is not plain.
PYTHON: Dict[str, Callable[..., Any]] = {
    "as_numpy": Tensor.as_numpy,
    "get_input_tensor_by_name": functions.get_input_tensor_by_name,
    "init_response": InferenceResponse.__init__,
    "init_tensor": Tensor.__init__,
    "inputs": InferenceRequest.inputs,
    "request_of": InferenceRequest._from_wire,
    "still_held": held_alone,
    "tensor_of": Tensor._from_region,
}

try:
    fast_path.require()
    from pyruntime.stub import _plain

    _SIZES: Dict[str, Tuple[Any, int]] = {name: (dtype, dtype.itemsize) for name, dtype in DTYPES.items()}
    _plain.use(Tensor, InferenceRequest, InferenceResponse, Regions, np.ndarray, _SIZES, DATATYPE_NAMES, PYTHON)
    make_requests, still_held, result = _plain.make_requests, _plain.still_held, _plain.result
    get_input_tensor_by_name = _plain.get_input_tensor_by_name

    def response_writer(writer: ResponseWriter) -> WriteResponses:
        """What writes plain responses, with the memory of this writer, which writes the others."""
        return (
            writer.native(_plain.Responses, writer.outputs).write
            if type(writer) is ResponseWriter
            else no_writer(writer)
        )
except ImportError:  # it has the stable ABI, which some Pythons cannot load, such as one without a GIL
    make_requests, still_held, response_writer = requests_from_wires, held_alone, no_writer
    get_input_tensor_by_name = functions.get_input_tensor_by_name
