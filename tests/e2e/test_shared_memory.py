# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where tensors live: a /dev/shm that is full, memory that runs out, and inputs that a model keeps."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from .harness.models import ECHO

# The request's ID selects which parts of the input are kept; the response has the ends of all kept parts. ID "drop"
# releases all of them; ID "die" ends the process.
KEEPER = """
class TritonPythonModel:
    keep = {
        "array": lambda request: request.inputs()[0].as_numpy(),
        "view": lambda request: request.inputs()[0].as_numpy()[1:].reshape(1, -1),
        "memoryview": lambda request: memoryview(request.inputs()[0].as_numpy()),
        "tensor": lambda request: request.inputs()[0],
        "inputs": lambda request: request.inputs(),
        "request": lambda request: request,
        "capsule": lambda request: np.from_dlpack(request.inputs()[0]),
    }

    def initialize(self, args):
        self.kept = []

    def array(self, kept):
        if hasattr(kept, "inputs"):
            kept = kept.inputs()
        if isinstance(kept, list):
            kept = kept[0]
        return kept.as_numpy() if hasattr(kept, "as_numpy") else np.asarray(kept)

    def execute(self, requests):
        responses = []
        for request in requests:
            if request.request_id() == "drop":
                self.kept.clear()
            elif request.request_id() == "die":
                os._exit(1)
            else:
                self.kept.append(self.keep[request.request_id()](request))
            ends = [(self.array(kept).min(), self.array(kept).max()) for kept in self.kept]
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array(ends, np.int64).ravel())]))
        return responses
"""
MIB = 1 << 20
LARGE = np.arange(2 * MIB, dtype=np.int64)  # 16 MiB
SMALL = np.arange(3, dtype=np.int64)


def shm_of(size):
    """A command that executes another one where /dev/shm has `size` bytes of its own; skips where that may not be."""
    script = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    wrapper = ("unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh")
    try:
        attempt = subprocess.run([*wrapper, "true"], capture_output=True, text=True)
    except OSError as error:
        pytest.skip(f"no private /dev/shm: {error}")
    if attempt.returncode:
        pytest.skip(f"no private /dev/shm: {attempt.stderr.strip()}")
    return wrapper


def shm_seen_by(server):
    """The server's own /dev/shm."""
    return Path(f"/proc/{server.process.pid}/root/dev/shm")


def echoes(server, array):
    """Whether a tensor comes back."""
    return np.array_equal(server.infer("echo", {"IN": array}).as_numpy("OUT"), array)


def test_dev_shm_is_not_used(model, serve):
    """A /dev/shm that is smaller than what containers have, and full, limits nothing."""
    model("echo", ECHO)
    server = serve(wrapper=shm_of(MIB))
    filler = shm_seen_by(server) / "filler"
    shm = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shm.f_bavail * shm.f_frsize)
    assert os.statvfs(filler.parent).f_bavail == 0
    for _ in range(3):
        assert echoes(server, LARGE)
        assert echoes(server, SMALL)
    assert os.listdir(filler.parent) == ["filler"]


def test_memory_that_runs_out(cgroup_of, model, serve):
    """A request that has no room fails with a clear error, and no process dies; it works when there is room."""
    model("keeper", KEEPER)
    server = serve(wrapper=cgroup_of(512 * MIB))
    family = server.family()
    refusal = None
    for _ in range(32):
        try:
            server.infer("keeper", {"IN": LARGE}, request_id="array")
        except InferenceServerException as exc:
            refusal = exc
            break
    assert refusal is not None
    assert refusal.status() == "503"
    assert "no shared memory left for " in refusal.message()
    assert refusal.message().endswith(f" are available, of which {32 * MIB} are kept free")
    assert server.infer("keeper", {"IN": SMALL}, request_id="drop").as_numpy("OUT").size == 0
    for _ in range(3):
        assert server.infer("keeper", {"IN": LARGE}, request_id="array").as_numpy("OUT").size
    assert server.family() == family


def test_memory_that_is_enough_for_the_request_only(cgroup_of, model, serve):
    """When there is room for a request and none for its response, that is an error of the same kind."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        size = requests[0].inputs()[0].as_numpy()[0]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.zeros(size, np.int64))]) for _ in requests]
"""
    model("zeros", code)
    server = serve(wrapper=cgroup_of(512 * MIB))
    family = server.family()
    for _ in range(3):
        status, message = server.refusal("zeros", {"IN": np.array([64 * MIB])})
        assert status == 503
        assert message.startswith(f"no room for a response of {512 * MIB} bytes: no shared memory left for ")
        assert server.infer("zeros", {"IN": np.array([3])}).as_numpy("OUT").tolist() == [0, 0, 0]
    assert server.family() == family


def test_memory_that_a_model_uses_up(cgroup_of, model, serve, wait_until):
    """A model that frees the pages of its regions and then uses all memory is killed, and not the server."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].request_id() == "use up":
            for entry in os.listdir("/proc/self/fd"):
                with contextlib.suppress(FileNotFoundError):
                    if os.readlink("/proc/self/fd/" + entry).startswith("/memfd:pyruntime re"):
                        with mmap.mmap(int(entry), 64 << 20) as region:
                            region.madvise(mmap.MADV_REMOVE)
            kept = [np.ones(1 << 20) for _ in range(1 << 10)]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for _ in requests]
"""
    model("greedy", "import contextlib, mmap\n" + code)
    model("echo", ECHO)
    server = serve(wrapper=cgroup_of(512 * MIB))
    echo = server.stub("echo_0")
    for _ in range(3):
        _, message = server.refusal("greedy", {"IN": LARGE}, request_id="use up")
        assert "SIGKILL" in message
        assert echoes(server, LARGE)
        assert server.stub("echo_0") == echo
        wait_until(server.is_ready)


def test_memory_that_a_dead_model_allocated(model, serve, wait_until):
    """Memory that a model itself allocated in a region is free again when its stub has died."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        if requests[0].request_id() == "fill":
            for entry in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink("/proc/self/fd/" + entry).startswith("/memfd:pyruntime "):
                        os.posix_fallocate(int(entry), 1 << 33, 64 << 20)
            os._exit(1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([1]))]) for _ in requests]
"""
    model("fills", "import contextlib\n" + code)
    server = serve()
    before = server.shared_bytes()
    server.refusal("fills", {"IN": SMALL}, request_id="fill")
    wait_until(server.is_ready)
    assert server.infer("fills", {"IN": SMALL}).as_numpy("OUT").tolist() == [1]
    assert server.shared_bytes() < before + 16 * MIB


@pytest.fixture(scope="module")
def keeper(tmp_path_factory, write_model, serving):
    """A server of a model that keeps its inputs."""
    repository = tmp_path_factory.mktemp("keeper")
    write_model(repository, "keeper", KEEPER)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("what", ["array", "view", "memoryview", "tensor", "inputs", "request", "capsule"])
@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_inputs_that_a_model_keeps(keeper, what, size, binary):
    """Inputs that a model keeps do not change with later requests; once released, their memory is used again."""
    for sign in (1, -1):
        for number in range(10):
            array = np.full(size, sign * number)
            result = keeper.infer("keeper", {"IN": array}, binary=binary, outputs=["OUT"], request_id=what)
            expected = [sign * kept for kept in range(number + 1) for _ in range(2)]
            assert result.as_numpy("OUT").tolist() == expected
        assert keeper.infer("keeper", {"IN": SMALL}, request_id="drop").as_numpy("OUT").size == 0


def test_what_a_dead_model_kept(model, serve, wait_until):
    """Inputs that a model kept are free when its stub dies, and so are its unsent responses."""
    model("keeper", KEEPER)
    server = serve()
    idle = server.shared_bytes()
    used = []
    for _ in range(4):
        for _ in range(5):
            server.infer("keeper", {"IN": LARGE}, request_id="array")
        used.append(server.shared_bytes())
        server.refusal("keeper", {"IN": LARGE}, request_id="die")
        wait_until(server.is_ready)
    assert used[0] >= idle + 5 * LARGE.nbytes
    # Some of it is kept for later requests, but it is not taken anew each time.
    assert used[-1] <= used[1] + LARGE.nbytes
    assert server.infer("keeper", {"IN": SMALL}, request_id="array").as_numpy("OUT").tolist() == [0, 2]


def test_outputs_that_a_model_keeps_writing_to(model, serve):
    """A response has the contents of the array at its return; the model may write to the array afterwards."""
    code = """
class TritonPythonModel:
    def initialize(self, args):
        self.array = np.zeros(100_000, np.int64)

    def execute(self, requests):
        self.array += 1
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", self.array)]) for request in requests]
"""
    model("echo", code)
    server = serve()
    results = [server.infer("echo", {"IN": SMALL}) for _ in range(5)]
    assert [np.unique(result.as_numpy("OUT")).tolist() for result in results] == [[1], [2], [3], [4], [5]]


def test_input_is_the_models_to_write_to(model, serve):
    """A model may write to its input array; that changes nothing for the requests that come after."""
    code = """
class TritonPythonModel:
    def execute(self, requests):
        array = requests[0].inputs()[0].as_numpy()
        array *= 2
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array)])]
"""
    model("echo", code)
    server = serve()
    for _ in range(3):
        assert server.infer("echo", {"IN": SMALL}).as_numpy("OUT").tolist() == [0, 2, 4]
