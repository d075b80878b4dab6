# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The module that a model.py imports as `c_python_backend_utils`, for the classes that the other one does not name."""

from pyruntime.stub.pb_utils.control import get_model_dir, is_model_ready, load_model, unload_model
from pyruntime.stub.pb_utils.errors import TritonError, TritonModelException
from pyruntime.stub.pb_utils.functions import TRITONSERVER_MEMORY_CPU, TRITONSERVER_MEMORY_GPU, MemoryType
from pyruntime.stub.pb_utils.internal import SharedMemory, async_event_future_done_callback
from pyruntime.stub.pb_utils.iterator import ResponseIterator
from pyruntime.stub.pb_utils.logger import Logger
from pyruntime.stub.pb_utils.metrics import Metric, MetricFamily, MetricKind
from pyruntime.stub.pb_utils.placement import InferenceTrace, PreferredMemory
from pyruntime.stub.pb_utils.request import InferenceRequest
from pyruntime.stub.pb_utils.response import InferenceResponse
from pyruntime.stub.pb_utils.sender import InferenceResponseSender
from pyruntime.stub.pb_utils.tensor import Tensor

COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "async_event_future_done_callback",
    "get_model_dir",
    "is_model_ready",
    "load_model",
    "unload_model",
]
