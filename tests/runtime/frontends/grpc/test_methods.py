# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The table of remote procedures."""

from pyruntime.runtime.cli.restrictions import APIS
from pyruntime.runtime.frontends.grpc.methods import METHODS, STREAMS
from pyruntime.runtime.frontends.grpc.schema import SERVICES

# Calls of their own kind.
INFERENCE = {"/inference.GRPCInferenceService/ModelInfer", "/inference.GRPCInferenceService/ModelStreamInfer"}


def test_every_method_of_every_service_is_served():
    """Each method of the services is served, as a stream if it is one, and no other method."""
    found = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
    assert set(METHODS) | set(STREAMS) | INFERENCE == set(found)
    for path, method in found.items():
        if path not in INFERENCE:
            assert (path in STREAMS) == method.server_streaming
            assert (METHODS | STREAMS)[path].request.DESCRIPTOR is method.input_type


def test_every_method_can_be_restricted():
    """By one of the names that operators may use."""
    assert {method.api for method in [*METHODS.values(), *STREAMS.values()]} <= set(APIS)
