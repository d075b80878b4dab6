# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`--no-fast-path`: tests with servers in which Python does what native code does otherwise; results are the same.

`-m protocols` selects the tests of those files whose requests pass native code in many ways. They are what .ci/run
tries a second time, as all tests of servers take a quarter of an hour; `make test-no-fast-path` tries them all.
Tests that have the marker `fast_path` are of native code itself, and are skipped.
"""

import pytest

from pyruntime.utils import fast_path

# Files of tests/e2e.
PROTOCOLS = frozenset(
    f"test_{name}.py"
    for name in (
        "batch_tensors",
        "batching",
        "bls",
        "cancellation",
        "classification",
        "client_memory",
        "compression",
        "connections",
        "decoupled",
        "ensembles",
        "fast_path",
        "generate",
        "grpc_connections",
        "grpc_infer",
        "http_endpoints",
        "http_limits",
        "large_answers",
        "large_tensors",
        "model_errors",
        "native_plain",
        "refusals",
        "response_cache",
        "response_order",
        "senders",
        "sequences",
        "shared_memory",
        "tensors",
        "tracing",
        "unix_sockets",
    )
)


def add_options(parser):
    parser.addoption("--no-fast-path", action="store_true", help="have Python do what native code does in servers")


def pytest_configure(config):
    if config.getoption("--no-fast-path"):
        # All servers inherit it, however a test starts them.
        fast_path.switch_off()


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="of the fast path, which --no-fast-path has switched off")
    for item in items:
        if item.path.parent.name == "e2e" and item.path.name in PROTOCOLS:
            item.add_marker(pytest.mark.protocols)
        if fast_path.is_off() and item.get_closest_marker("fast_path") is not None:
            item.add_marker(skip)
