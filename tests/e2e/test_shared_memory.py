# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Where tensors live: a /dev/shm that is small or full, and inputs that a model keeps."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

ECHO = (Path(__file__).parent / "models/echo.py").read_text()
# Keeps of every input what the request's id says, and answers with the ends of what the kept ones hold now.
# Id "drop": lets go of all of them; id "die": dies with them.
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


def test_tiny_dev_shm(model, serve):
    """A /dev/shm of 1 MiB, smaller than what containers have, limits nothing."""
    model("echo", ECHO)
    server = serve(wrapper=shm_of(MIB))
    assert os.statvfs(shm_seen_by(server)).f_blocks * os.statvfs(shm_seen_by(server)).f_frsize == MIB
    for _ in range(3):
        assert echoes(server, LARGE)
        assert echoes(server, SMALL)


def test_nothing_has_a_name(model, serve):
    """What a server uses of /dev/shm has no name there, while it runs as little as after it."""
    model("echo", ECHO)
    server = serve(wrapper=shm_of(2048 * MIB))
    assert echoes(server, LARGE)
    shm = os.statvfs(shm_seen_by(server))
    assert shm.f_bfree < shm.f_blocks  # it is what the server uses
    assert os.listdir(shm_seen_by(server)) == []


def test_full_dev_shm(model, serve, require_memory):
    """When /dev/shm fills up a request that has no room fails with a clear error, and works when there is room."""
    require_memory(2048 * MIB)
    model("echo", ECHO)
    server = serve(wrapper=shm_of(1100 * MIB))
    assert echoes(server, SMALL)
    filler = shm_seen_by(server) / "filler"
    shm = os.statvfs(filler.parent)
    assert shm.f_bfree < shm.f_blocks, "the server uses another memory"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shm.f_bavail * shm.f_frsize)
    for _ in range(3):
        status, message = server.refusal("echo", {"IN": LARGE})
        assert status == 503
        assert "no shared memory left for " in message
        assert message.endswith("/dev/shm is full")
        assert echoes(server, SMALL)
    assert server.is_ready()
    filler.unlink()
    assert echoes(server, LARGE)


def test_dev_shm_with_room_for_the_request_only(model, serve, require_memory):
    """When there is room for a request and none for its response, that is an error of the same kind."""
    require_memory(2048 * MIB)
    model("echo", ECHO)
    server = serve(wrapper=shm_of(1100 * MIB))
    filler = shm_seen_by(server) / "filler"
    shm = os.statvfs(filler.parent)
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shm.f_bavail * shm.f_frsize - LARGE.nbytes - 6 * MIB)
    for _ in range(3):
        status, message = server.refusal("echo", {"IN": LARGE})
        assert status == 503
        assert message.startswith("no room for a response of ")
        assert echoes(server, SMALL)
    filler.unlink()
    assert echoes(server, LARGE)


@pytest.fixture(scope="module")
def keeper(tmp_path_factory, write_model, serving):
    """A server of a model that keeps what it gets."""
    repository = tmp_path_factory.mktemp("keeper")
    write_model(repository, "keeper", KEEPER)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("what", ["array", "view", "memoryview", "tensor", "inputs", "request", "capsule"])
@pytest.mark.parametrize("size", [3, 100_000])
@pytest.mark.parametrize("binary", [True, False], ids=["binary", "json"])
def test_inputs_that_a_model_keeps(keeper, what, size, binary):
    """What a model keeps of its inputs holds what it held, whatever comes after; let go, it is used again."""
    for sign in (1, -1):
        for number in range(10):
            array = np.full(size, sign * number)
            result = keeper.infer("keeper", {"IN": array}, binary=binary, outputs=["OUT"], request_id=what)
            expected = [sign * kept for kept in range(number + 1) for _ in range(2)]
            assert result.as_numpy("OUT").tolist() == expected
        assert keeper.infer("keeper", {"IN": SMALL}, request_id="drop").as_numpy("OUT").size == 0


def test_what_a_dead_model_kept(model, serve, wait_until):
    """What a model kept is free when its stub dies, and so is what the stub was about to answer."""
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
    """A response is what the array held when it was returned; the model may write to the array afterwards."""
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
