# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Says how threads of OpenMP wait in the processes of models."""

import os

POLICY = "OMP_WAIT_POLICY"


def wait_passively() -> None:
    """Let threads of OpenMP sleep while they wait for work, unless the environment says otherwise.

    They would spin, on cores that the server and other instances need: a small model of torch took ten times the time
    of the processor for a request. A library of OpenMP reads this when it is loaded.
    """
    os.environ.setdefault(POLICY, "passive")
