# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What is said of a stub that ends: facts, and no guess."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

INPUT = {"IN": np.arange(3)}
ECHO = """
class TritonPythonModel:
    def initialize(self, args):
        {initialize}

    def execute(self, requests):
        {execute}
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", each.inputs()[0].as_numpy())]) for each in requests]
"""
LOST = "Stub process 'm_0' is not healthy. It was lost while it ran this request: "


def echo(initialize="pass", execute="pass"):
    return ECHO.format(initialize=initialize, execute=execute)


@pytest.mark.parametrize("last", [256, 1024])
def test_a_model_may_close_low_descriptors_as_daemons_do(model, deploy, python, last):
    """The connection to the server is none of them."""
    model("m", echo(f"os.closerange(3, {last})"), more=python)
    server = deploy()
    for size in (3, 1 << 20):
        array = np.arange(size)
        assert np.array_equal(server.infer("m", {"IN": array}).as_numpy("OUT"), array)


def test_a_model_that_closes_every_descriptor_exits_with_its_error(model, serve, python):
    """Its load fails for that, and nobody has killed it."""
    model("m", echo("os.closerange(3, 1 << 16)"), more=python)
    server = serve("--exit-on-error=false", "--strict-readiness=false")
    index = server.request("POST", "/v2/repository/index").body.decode()
    assert "the stub process of m_0 exited with code 1 while it loaded the model" in index
    assert "m_0: OSError: [Errno 9] Bad file descriptor" in server.log


def test_a_stub_that_somebody_kills_was_not_killed_by_the_server(model, deploy):
    model("m", echo(execute="os.kill(os.getpid(), signal.SIGKILL)"))
    server = deploy()
    cause = "killed by SIGKILL (not by the server; it is unknown who sent it)"
    assert server.refusal("m", INPUT) == (500, LOST + cause)


def test_a_stub_that_the_server_kills_is_lost_for_the_servers_reason(model, serve, tmp_path, wait_until):
    model("m", echo(execute=f"open({str(tmp_path / '.runs')!r}, 'w').close(); threading.Event().wait()"))
    server = serve("--model-control-mode=explicit", "--load-model=m", "--exit-timeout-secs=2")
    with ThreadPoolExecutor() as clients:
        request = clients.submit(server.refusal, "m", INPUT)
        wait_until((tmp_path / ".runs").exists)
        server.request("POST", "/v2/repository/models/m/unload", "{}")
        cause = "killed by SIGKILL (by the server: it did not finish within 2 s)"
        assert request.result() == (500, LOST + cause)


def test_a_stub_is_lost_with_its_guardian(model, deploy):
    model("m", echo(execute="os.kill(os.getppid(), signal.SIGKILL); threading.Event().wait()"))
    assert deploy().refusal("m", INPUT) == (500, LOST + "killed by SIGKILL (together with its guardian)")


def test_a_model_that_needs_too_much_memory_is_killed_by_the_kernel(model, cgroup_of, serve):
    """The kernel's own count for the cgroup says so."""
    model("m", echo(execute="[bytearray(os.urandom(1)) * (1 << 24) for _ in range(1000)]"))
    server = serve(wrapper=cgroup_of(512 << 20))
    status, message = server.refusal("m", INPUT)
    assert status == 500
    cause = "the kernel's out-of-memory killer has ended a process of the server's cgroup"
    assert message == f"{LOST}killed by SIGKILL ({cause})"
