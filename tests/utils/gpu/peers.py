# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Other processes that use the same GPUs: see peer.py."""

import pickle
import subprocess
import sys
from pathlib import Path

PEER = Path(__file__).with_name("peer.py")


class Refused(Exception):
    """A GPU refused a call in the other process: the name of the error's class, and the reason."""


class Peer:
    """A process with a GPU: its methods are those of `Gpu`, but `read` takes a size and returns the bytes."""

    def __init__(self, ordinal):
        arguments = [sys.executable, str(PEER), str(ordinal)]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __getattr__(self, method):
        def call(*arguments):
            pickle.dump((method, arguments), self._process.stdin)
            self._process.stdin.flush()
            succeeded, result = pickle.load(self._process.stdout)
            if not succeeded:
                raise Refused(*result)
            return result

        return call

    def end(self):
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()
