# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of clients on a GPU, by NVIDIA's driver. On machines without a GPU test_cuda_memory.py has a stand-in."""

import os
import signal
from contextlib import closing

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.e2e.harness.gpu_regions import BOTH, GRPC, Region, brokers, client_of, infer, on_gpu, sent, to_gpu
from tests.e2e.test_cuda_memory import DOUBLE
from tests.plugins.gpus import gpu_of_this_machine

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def gpu():
    """The first GPU of the machine, as this process uses it."""
    with pytest.MonkeyPatch.context() as patch:
        yield gpu_of_this_machine(patch)


@pytest.fixture(scope="module")
def server(gpu, serving, write_model, tmp_path_factory):
    """A server that takes regions."""
    repository = tmp_path_factory.mktemp("models")
    write_model(repository, "double", DOUBLE, more="instance_group [ { kind: KIND_GPU gpus: [ 0 ] } ]")
    with serving(repository, "--allow-client-shm=true") as started:
        yield started


@pytest.fixture(scope="module")
def gpus(gpu):
    """The GPU that regions are on."""
    return [gpu]


@BOTH
@pytest.mark.parametrize("count", [4, 5_000_000], ids=["small", "large"])
def test_memory_of_a_client(server, region, protocol, count):
    """Inputs are read from the client's memory, outputs are written there."""
    array = np.arange(count)
    one, two = region(protocol, array.nbytes), region(protocol, array.nbytes + 16)
    one.put(array)
    infer(server, protocol, "double", [on_gpu(protocol, array, one)], [to_gpu(protocol, two, array.nbytes, 16)])
    assert_array_equal(two.get(array, 16), array * 2)
    assert_array_equal(one.get(array), array)


def test_broker_is_killed(server, region, wait_until):
    """The next one opens the same memory."""
    array = np.arange(1000)
    one = region(GRPC, array.nbytes)
    one.put(array)
    for broker in brokers(server):
        os.kill(broker.pid, signal.SIGKILL)
    wait_until(lambda: not brokers(server))
    result = infer(server, GRPC, "double", [on_gpu(GRPC, array, one)])
    assert_array_equal(result.as_numpy("OUT"), array * 2)


def test_memory_stays_flat(server, gpu):
    """Many requests, and regions that come and go, take no memory of the GPU."""
    array = np.arange(1000)

    def use(count):
        for _ in range(count):
            one = Region(server, GRPC, gpu, array.nbytes)
            infer(server, GRPC, "double", [sent(GRPC, array)], [to_gpu(GRPC, one, array.nbytes)])
            one.end()
            gpu.free(one.pointer)

    use(20)
    before = gpu.properties().free_bytes
    use(200)
    # Other processes of the machine may use some.
    assert before - gpu.properties().free_bytes < 64 << 20


@BOTH
def test_functions_of_tritonclient(server, protocol):
    """Regions that tritonclient's own functions make, fill and read."""
    from tritonclient.utils import cuda_shared_memory as shared  # needs cuda-bindings, as the GPU does

    array = np.arange(100_000)
    regions = [shared.create_shared_memory_region(name, array.nbytes, 0) for name in ("one", "two")]
    shared.set_shared_memory_region(regions[0], [array])
    with closing(client_of(server, protocol)) as client:
        for name, region in zip(("one", "two"), regions, strict=True):
            client.register_cuda_shared_memory(name, shared.get_raw_handle(region), 0, array.nbytes)
        given, made = protocol.InferInput("IN", [array.size], "INT64"), protocol.InferRequestedOutput("OUT")
        given.set_shared_memory("one", array.nbytes)
        made.set_shared_memory("two", array.nbytes)
        client.infer("double", [given], outputs=[made])
        assert_array_equal(shared.get_contents_as_numpy(regions[1], np.int64, [array.size]), array * 2)
        client.unregister_cuda_shared_memory()
    while regions:
        shared.destroy_shared_memory_region(regions.pop())
