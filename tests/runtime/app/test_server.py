# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a server imports before it reads its first model: the imports are most of its start."""

import subprocess
import sys

import pytest

# Of other commands, of options, and of models that most servers do not have. Each takes milliseconds to import.
IMPORTED_LATER = {
    "click",
    "dill",
    "email",
    "importlib.metadata",
    "importlib.resources",
    "multiprocessing",
    "numpy",
    "redis",
    "rich",
    "tomllib",
    "typer",
    "urllib.request",
    "yaml",
    "zipfile",
    "pyruntime.runtime.brokers.broker",
    "pyruntime.runtime.brokers.link",
    "pyruntime.runtime.caching.library",
    "pyruntime.runtime.caching.redis",
    "pyruntime.runtime.cli.app",
    "pyruntime.runtime.ensembles",
    "pyruntime.runtime.environments.prepare",
    "pyruntime.runtime.frontends.grpc",
    "pyruntime.runtime.instances.native.instance",
    "pyruntime.runtime.loaders.ensemble",
    "pyruntime.runtime.loaders.native",
    "pyruntime.runtime.native._triton",
    "pyruntime.runtime.native.libraries",
    "pyruntime.runtime.scheduling.limited_schedulers",
    "pyruntime.runtime.scheduling.sequence_scheduler",
    "pyruntime.stub",
    "pyruntime.utils.gpu.cuda",
    "pyruntime.utils.gpu.inventory",
    "pyruntime.utils.gpu.stand_in",
}


@pytest.mark.processes
def test_imports():
    """A server imports nothing that it needs only with certain models or options."""
    names = "pyruntime.runtime.app.server, pyruntime.runtime.cli.serve, pyruntime.runtime.frontends.listeners"
    program = f"import sys, {names}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert "pyruntime.runtime.app.server" in imported
    assert imported & IMPORTED_LATER == set()
