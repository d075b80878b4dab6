# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Has a model of a server attack it by system calls on its descriptors; see models/descriptors.py."""

import contextlib
import json
from pathlib import Path

import numpy as np
from tritonclient.utils import InferenceServerException

from .models import CODE, ECHO, write_model
from .processes import Process
from .server import Server
from .waiting import wait_until

# Large enough for request memory, for a response in a region, and for a page of each to be hit.
LARGE = np.arange(100_000)
SMALL = np.arange(3)


class DescriptorAttack:
    """A model `attacker`, and a model `echo` that must be right whatever the other does.

    The server controls models explicitly and loads all of them.
    """

    OPTIONS = ("--model-control-mode=explicit", "--load-model=*")

    def __init__(self, repository: Path) -> None:
        """Write the models."""
        self._folder = write_model(repository, "attacker", (CODE / "descriptors.py").read_text())
        write_model(repository, "echo", ECHO)
        self._lives = 0
        self._stubs: list[Process] = []

    def run(self, server: Server, *, hang_up: bool = False, **asked: object) -> None:
        """Attack once, and check that the server lives and serves. AssertionError, with what was asked for.

        `asked` are parameters of the request. With `hang_up` its client leaves at once, so that the server uses the
        flags of the region while they are attacked.
        """
        self._stubs = server.stubs("attacker_0")
        if hang_up:
            document = {"inputs": [{"name": "IN", "shape": [3], "datatype": "INT64", "data": [1, 2, 3]}]}
            body = json.dumps({**document, "parameters": asked})
            with contextlib.closing(server.connect()) as sock:
                head = f"POST /v2/models/attacker/infer HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
                sock.sendall((head + body).encode())
        else:
            with contextlib.suppress(InferenceServerException):
                server.infer("attacker", {"IN": LARGE}, parameters=asked)
        for array in (LARGE, SMALL):
            assert server.process.poll() is None, f"the server ended with {server.process.returncode}: {asked}"
            assert np.array_equal(server.infer("echo", {"IN": array}).as_numpy("OUT"), array), asked
        broken = self._folder / "broken"
        assert not broken.exists(), broken.read_text()
        if not self._survived(server):
            self._load_again(server)

    def _survived(self, server: Server) -> bool:
        """Whether the attacker's process lives and is still of use."""
        if server.stubs("attacker_0") != self._stubs:
            return False
        try:
            return np.array_equal(server.infer("attacker", {"IN": LARGE}).as_numpy("OUT"), LARGE)
        except InferenceServerException:
            return False

    def _load_again(self, server: Server) -> None:
        """Start the attacker anew, without the pauses between restarts. A change of its files has it loaded."""
        self._lives += 1
        (self._folder / "lives").write_text("x" * self._lives)
        loaded = server.request("POST", "/v2/repository/models/attacker/load", b"")
        assert loaded.status == 200, loaded.body
        wait_until(server.is_ready)
