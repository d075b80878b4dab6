# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
import json
from dataclasses import replace

from pyruntime.runtime.app.documents import model_metadata, repository_index, server_metadata
from pyruntime.runtime.config.spec import TensorSpec
from pyruntime.runtime.repository.lifecycle import IndexRow

from ..model_specs import BARE_SPEC


def test_server_metadata():
    """The metadata has the server's name, its version and its extensions."""
    assert json.loads(server_metadata("triton", "2.73.0")) == {
        "name": "triton",
        "version": "2.73.0",
        "extensions": [
            "classification",
            "sequence",
            "model_repository",
            "model_repository(unload_dependents)",
            "schedule_policy",
            "model_configuration",
            "system_shared_memory",
            "binary_tensor_data",
            "parameters",
            "statistics",
            "trace",
            "logging",
        ],
    }


def test_model_metadata():
    """Versions are strings, shapes are those that clients send, and members stand in Triton's order."""
    spec = replace(
        BARE_SPEC,
        platform="python",
        max_batch_size=8,
        inputs={
            "X": TensorSpec("X", "FP32", (4,), (-1, 4)),
            "Z": TensorSpec("Z", "BYTES", (-1,), (-1, -1), optional=True),
        },
        outputs={"Y": TensorSpec("Y", "INT64", (), (-1,))},
        required_inputs=frozenset({"X"}),
    )
    assert model_metadata(spec, [1, 3]) == (
        b'{"name":"m","versions":["1","3"],"platform":"python",'
        b'"inputs":[{"name":"X","datatype":"FP32","shape":[-1,4]},{"name":"Z","datatype":"BYTES","shape":[-1,-1]}],'
        b'"outputs":[{"name":"Y","datatype":"INT64","shape":[-1]}]}'
    )


def test_repository_index():
    """A model that was never loaded is only a name; a reason is there only where there is one."""
    rows = [
        IndexRow("a"),
        IndexRow("b", "1", "READY"),
        IndexRow("b", "2", "UNAVAILABLE", "unloaded"),
    ]
    assert repository_index(rows) == (
        b'[{"name":"a"},{"name":"b","version":"1","state":"READY"},'
        b'{"name":"b","version":"2","state":"UNAVAILABLE","reason":"unloaded"}]'
    )
    assert repository_index([]) == b"[]"
