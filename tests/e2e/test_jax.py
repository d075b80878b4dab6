# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "jax": an exported function by the Python package jax. More is in tests/backends/test_jax.py."""

from contextlib import closing

import numpy as np
import pytest

from .harness.operations import CustomOperations, libraries

jax = pytest.importorskip("jax", reason="jax is not installed (pip install jax)")
export = pytest.importorskip("jax.export", reason="this jax has no jax.export (pip install -U jax)")


def test_a_model_of_a_file_alone(serve, model):
    """The backend is found by the file, and the configuration completed by it."""
    rows = jax.ShapeDtypeStruct((*export.symbolic_shape("rows"), 3), np.float32)
    exported = export.export(jax.jit(lambda a, b: {"sum": a + b, "difference": a - b}), platforms=["cpu"])(
        a=rows, b=rows
    )
    (model("bare", None, None) / "1" / "model.jax").write_bytes(exported.serialize())
    server = serve()
    with closing(server.client()) as client:
        config = client.get_model_config("bare")
    assert (config["backend"], config["default_model_filename"], config["max_batch_size"]) == ("jax", "model.jax", 4)
    first, second = np.arange(9, dtype=np.float32).reshape(3, 3), np.full((3, 3), 10, np.float32)
    answer = server.infer("bare", {"a": first, "b": second})
    assert answer.as_numpy("sum").tolist() == (first + second).tolist()
    assert answer.as_numpy("difference").tolist() == (first - second).tolist()


class TestCustomOperations(CustomOperations):
    FRAMEWORK = f"jax {jax.__version__}"

    @pytest.fixture
    def compile_op(self, compile_library):
        """See CustomOperations."""
        return lambda factor: compile_library(
            "jax_custom_op.cc", f"-DFACTOR={factor}", "-isystem", jax.ffi.include_dir()
        )

    @pytest.fixture
    def scaling(self, model):
        """See CustomOperations."""
        rows = jax.ShapeDtypeStruct((*export.symbolic_shape("rows"), 3), np.float32)
        checks = [export.DisabledSafetyCheck.custom_call("test_scale")]
        exported = export.export(
            jax.jit(lambda IN: {"OUT": jax.ffi.ffi_call("test_scale", jax.ShapeDtypeStruct(IN.shape, IN.dtype))(IN)}),
            platforms=["cpu"],
            disabled_checks=checks,
        )(IN=rows)

        def write(name, *paths):
            folder = model(name, None, 'backend: "jax" instance_group { kind: KIND_CPU }\n' + libraries(*paths))
            (folder / "1" / "model.jax").write_bytes(exported.serialize())
            return folder

        return write
