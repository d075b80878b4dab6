# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of this process on a GPU, which a server reads and writes for requests of Triton's own clients."""

import base64
import os
import re
import signal
from contextlib import closing
from uuid import uuid4

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import np_to_triton_dtype

from .waiting import wait_until

HTTP, GRPC = tritonclient.http, tritonclient.grpc
BOTH = pytest.mark.parametrize("protocol", [HTTP, GRPC], ids=["http", "grpc"])


class Region:
    """Memory on a GPU, registered over one of the protocols."""

    def __init__(self, server, protocol, gpu, size):
        self._client = client_of(server, protocol)
        self.gpu = gpu
        self.name = uuid4().hex
        self.size = size
        self.pointer = gpu.allocate(size)
        self.handle = base64.b64encode(gpu.export(self.pointer))
        device = gpu.properties().ordinal
        self._client.register_cuda_shared_memory(self.name, self.handle, device, size)

    def put(self, contents, offset=0):
        self.gpu.write(self.pointer + offset, np.ascontiguousarray(contents).view(np.uint8))

    def get(self, array, offset=0):
        """The contents, in the datatype and shape of `array`."""
        target = np.empty_like(array)
        self.gpu.read(self.pointer + offset, target.view(np.uint8))
        return target

    def unregister(self):
        self._client.unregister_cuda_shared_memory(self.name)

    def end(self):
        self.unregister()
        self._client.close()


def client_of(server, protocol):
    return server.client() if protocol is HTTP else server.grpc()


def leased(server, uuid):
    """The bytes of a GPU that models lease, or the server for copies."""
    page = server.request("GET", "/metrics", port=server.metrics_port).body.decode()
    return float(
        re.search(f'^pyruntime_gpu_pool_bytes{{gpu_uuid="{uuid}",state="leased"}} (.*)$', page, re.MULTILINE)[1]
    )


def infer(server, protocol, model, inputs, outputs=None):
    with closing(client_of(server, protocol)) as client:
        return client.infer(model, inputs, outputs=outputs)


def told(result):
    """What the model told beside its outputs."""
    response = result.get_response()
    if isinstance(response, dict):
        return response["parameters"]
    return {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.parameters.items()}


def on_gpu(protocol, array, region, offset=0, datatype=None, size=None):
    """The input IN, which lies in a region."""
    tensor = protocol.InferInput("IN", list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_shared_memory(region.name, array.nbytes if size is None else size, offset)
    return tensor


def to_gpu(protocol, region, size, offset=0):
    """The output OUT, which goes to a region."""
    output = protocol.InferRequestedOutput("OUT")
    output.set_shared_memory(region.name, size, offset)
    return output


def sent(protocol, array):
    """The input IN, which is part of the request."""
    tensor = protocol.InferInput("IN", list(array.shape), "INT64")
    tensor.set_data_from_numpy(array)
    return tensor


def brokers(server):
    """The processes of the server's brokers."""
    return [process for process in server.family() if "broker of GPU" in process.title]


def lose_broker(server, ordinal=0):
    """Kill the broker of a GPU on which there are tensors, and wait until the server knows it."""
    said = f"The tensors of models on GPU {ordinal} were lost with its broker."
    before = server.log.count(said)
    (broker,) = [each for each in brokers(server) if f"broker of GPU {ordinal}" in each.title]
    os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: server.log.count(said) > before)
