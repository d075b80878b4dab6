# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models as people write them for Triton, each with its client, in examples/.

They pass on what they have: bytes of a tensor of strings as names, numpy's numbers as options; they use argparse, and
print. A client is a program that gets the addresses of HTTP, of gRPC and of the metrics, and says PASS.
"""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples")
NAMES = sorted(each.name for each in EXAMPLES.iterdir() if (each / "model.py").exists())
# The packages that some of them need, which are not among those of the tests.
NEEDS = {"pytorch": "torch", "jax": "jax"}


def lacks(name):
    """The package that is missing for an example, or ""."""
    needed = NEEDS.get(name, "")
    return needed if needed and importlib.util.find_spec(needed) is None else ""


@pytest.fixture(scope="module")
def server(serving, tmp_path_factory):
    """A server of all examples."""
    repository = tmp_path_factory.mktemp("examples")
    for name in NAMES:
        if not lacks(name):
            (repository / name / "1").mkdir(parents=True)
            shutil.copy(EXAMPLES / name / "model.py", repository / name / "1")
            if (EXAMPLES / name / "config.pbtxt").exists():
                shutil.copy(EXAMPLES / name / "config.pbtxt", repository / name)
    with serving(repository) as server:
        yield server


@pytest.mark.parametrize("name", NAMES)
def test_example(server, name):
    """The client finds what it expects."""
    if lacks(name):
        pytest.skip(f"{lacks(name)} is not installed")
    ports = (server.port, server.grpc_port, server.metrics_port)
    command = [sys.executable, str(EXAMPLES / name / "client.py"), *(f"localhost:{port}" for port in ports)]
    client = subprocess.run(command, capture_output=True, text=True)
    assert client.returncode == 0, client.stdout + client.stderr
    assert "PASS" in client.stdout


def test_models_print(server, wait_until):
    """What a model prints is in the log."""
    for said in ("Initialized...", "the calls have Namespace(timeout=", "Cumulative requests processing latency:"):
        wait_until(lambda said=said: said in server.log)
