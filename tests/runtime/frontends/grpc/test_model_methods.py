# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Remote procedures about one model."""

import json

import pytest
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2

from pyruntime.runtime.app import documents
from pyruntime.runtime.config.build import model_spec
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.utils.errors import Code

ABOUT_ONE = ["ModelReady", "ModelMetadata", "ModelConfig", "ModelStatistics"]
EVERYTHING = """
name: 'all' backend: 'python' max_batch_size: 8
input { name: 'IN' data_type: TYPE_FP32 dims: [ -1, 3 ] reshape { shape: [ -1, 3, 1 ] } }
output { name: 'OUT' data_type: TYPE_STRING dims: 1 label_filename: 'l.txt' }
version_policy { specific { versions: [ 1, 9223372036854775807 ] } }
dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 18446744073709551615 }
instance_group { count: 2 kind: KIND_CPU }
parameters { key: 'k' value { string_value: 'v' } }
model_metrics { metric_control { metric_identifier { family: 'f' } histogram_options { buckets: [ 0.1, 1 ] } } }
"""


@pytest.mark.parametrize("name", ABOUT_ONE)
@pytest.mark.parametrize("version", ["x", "0", "-1", "1x", "99999999999999999999"])
def test_no_version(call, name, version):
    """A text that is not a version is refused, for known and for unknown models."""
    for model in ("m", "nope"):
        code, message = call.error(name, name=model, version=version)
        assert code is Code.INVALID_ARG
        assert message.startswith("failed to get model version from specified version string '")
        details = " (details: stol)" if version in ("x", "99999999999999999999") else ""
        assert message.endswith(f"'{details}, version should be an integral value > 0")


class TestReady:
    @pytest.mark.parametrize("version", ["", "1"])
    def test_a_model_that_serves(self, call, version):
        """By any version, or by one."""
        assert call("ModelReady", name="m", version=version).ready is True

    @pytest.mark.parametrize(("name", "version"), [("nope", ""), ("m", "2"), ("", "")])
    def test_what_there_is_not(self, call, name, version):
        """It is not ready, and that is no error."""
        assert call("ModelReady", name=name, version=version).ready is False

    def test_that_takes_its_time(self, call, server):
        """The model is asked."""
        server.instance.answers_checks = False
        call.begin("ModelReady", name="m")
        assert call.replies == []
        server.instance.answer_check(False)
        assert [reply.ready for reply in call.replies] == [False]

    def test_exiting(self, call):
        """No model of a server that exits is ready."""
        call.state.exiting = True
        assert call("ModelReady", name="m").ready is False


class TestMetadata:
    @pytest.mark.parametrize("version", ["", "1"])
    def test_is_that_of_http(self, call, version):
        """Field by field."""
        metadata = call("ModelMetadata", name="m", version=version)
        found = json_format.MessageToDict(metadata)
        assert [found["inputs"][0].pop("shape"), found["outputs"][0].pop("shape")] == [["-1"], ["-1"]]
        expected = json.loads(documents.model_metadata(call.state.resolve("m").spec, (1,)))
        assert [expected["inputs"][0].pop("shape"), expected["outputs"][0].pop("shape")] == [[-1], [-1]]
        assert found == expected

    def test_unknown(self, call):
        """Triton's words."""
        assert call.error("ModelMetadata", name="nope") == (
            Code.NOT_FOUND, "Request for unknown model: 'nope' is not found",
        )  # fmt: skip
        assert call.error("ModelMetadata", name="m", version="7") == (
            Code.NOT_FOUND, "Request for unknown model: 'm' version 7 is not found",
        )  # fmt: skip


class TestConfig:
    def test_is_what_the_model_runs_with(self, call, server):
        """All fields survive, and Triton's client reads them."""
        config = normalize(
            parse_model_config(EVERYTHING, "config.pbtxt"), directory_name="all", files=["model.py"], gpus=()
        )
        server.model.spec = model_spec(config)
        found = call("ModelConfig", name="m").config
        assert found == config
        theirs = model_config_pb2.ModelConfig.FromString(found.SerializeToString())
        assert text_format.MessageToString(theirs) == text_format.MessageToString(config)

    def test_unknown(self, call):
        """Triton's words."""
        assert call.error("ModelConfig", name="", version="1") == (
            Code.NOT_FOUND, "Request for unknown model: '' is not found",
        )  # fmt: skip


class TestStatistics:
    def test_are_those_of_http(self, call, server):
        """Number by number; 64 bits of them."""
        server.model.statistics.success(3, 10, 20, 30, 40, 2**63)
        server.model.statistics.execution(3, 20, 30, 40, 1_700_000_000_000)
        found = call("ModelStatistics", name="m").model_stats
        (statistics,) = found
        expected = server.state.statistics("m")[0]
        assert statistics.inference_stats.success.ns == 2**63
        assert statistics.last_inference == expected["last_inference"] == 1_700_000_000_000
        assert (statistics.name, statistics.version, statistics.inference_count) == ("m", "1", 3)
        assert json_format.ParseDict(expected, type(statistics)()) == statistics
        assert statistics.batch_stats[0].batch_size == 3
        assert statistics.batch_stats[0].compute_infer.ns == 30

    def test_of_all_models(self, call):
        """Without a name, and then a version says nothing."""
        assert [each.name for each in call("ModelStatistics").model_stats] == ["d", "m"]
        assert [each.name for each in call("ModelStatistics", version="7").model_stats] == ["d", "m"]

    def test_unknown(self, call):
        """Triton's words."""
        assert call.error("ModelStatistics", name="nope") == (
            Code.INVALID_ARG, "requested model 'nope' is not available",
        )  # fmt: skip
        assert call.error("ModelStatistics", name="m", version="7") == (
            Code.INVALID_ARG, "requested model version is not available for model 'm'",
        )  # fmt: skip
