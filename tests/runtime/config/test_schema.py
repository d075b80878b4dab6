# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The schema of config.pbtxt: names and numbers that clients decode, and so must never move."""

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool

import pyruntime.runtime.config
from pyruntime.runtime.config.schema import CONFIG_DESCRIPTOR, POOL, new_model_config

FOLDER = Path(pyruntime.runtime.config.__file__).resolve().parent
GENERATE_PROTO = FOLDER.parent.parent / "scripts" / "generate_proto"

# Message, field, number, type; in the order in which the config endpoint prints them.
FIELDS = """
ModelRateLimiter.Resource name 1 string
ModelRateLimiter.Resource global 2 bool
ModelRateLimiter.Resource count 3 uint32
ModelRateLimiter resources 1 repeated Resource
ModelRateLimiter priority 2 uint32
ModelInstanceGroup.SecondaryDevice kind 1 SecondaryDeviceKind
ModelInstanceGroup.SecondaryDevice device_id 2 int64
ModelInstanceGroup name 1 string
ModelInstanceGroup kind 4 Kind
ModelInstanceGroup count 2 int32
ModelInstanceGroup rate_limiter 6 ModelRateLimiter
ModelInstanceGroup gpus 3 repeated int32
ModelInstanceGroup secondary_devices 8 repeated SecondaryDevice
ModelInstanceGroup profile 5 repeated string
ModelInstanceGroup passive 7 bool
ModelInstanceGroup host_policy 9 string
ModelTensorReshape shape 1 repeated int64
ModelInput name 1 string
ModelInput data_type 2 DataType
ModelInput format 3 Format
ModelInput dims 4 repeated int64
ModelInput reshape 5 ModelTensorReshape
ModelInput is_shape_tensor 6 bool
ModelInput allow_ragged_batch 7 bool
ModelInput optional 8 bool
ModelInput is_non_linear_format_io 9 bool
ModelOutput name 1 string
ModelOutput data_type 2 DataType
ModelOutput dims 3 repeated int64
ModelOutput reshape 5 ModelTensorReshape
ModelOutput label_filename 4 string
ModelOutput is_shape_tensor 6 bool
ModelOutput is_non_linear_format_io 7 bool
BatchInput kind 1 Kind
BatchInput target_name 2 repeated string
BatchInput data_type 3 DataType
BatchInput source_input 4 repeated string
BatchOutput target_name 1 repeated string
BatchOutput kind 2 Kind
BatchOutput source_input 3 repeated string
ModelVersionPolicy.Latest num_versions 1 uint32
ModelVersionPolicy.Specific versions 1 repeated int64
ModelVersionPolicy latest 1 Latest
ModelVersionPolicy all 2 All
ModelVersionPolicy specific 3 Specific
ModelOptimizationPolicy.Graph level 1 int32
ModelOptimizationPolicy.Cuda.GraphSpec.Shape dim 1 repeated int64
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound batch_size 1 int32
ModelOptimizationPolicy.Cuda.GraphSpec.LowerBound input 2 map<string, Shape>
ModelOptimizationPolicy.Cuda.GraphSpec batch_size 1 int32
ModelOptimizationPolicy.Cuda.GraphSpec input 2 map<string, Shape>
ModelOptimizationPolicy.Cuda.GraphSpec graph_lower_bound 3 LowerBound
ModelOptimizationPolicy.Cuda graphs 1 bool
ModelOptimizationPolicy.Cuda busy_wait_events 2 bool
ModelOptimizationPolicy.Cuda graph_spec 3 repeated GraphSpec
ModelOptimizationPolicy.Cuda output_copy_stream 4 bool
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator name 1 string
ModelOptimizationPolicy.ExecutionAccelerators.Accelerator parameters 2 map<string, string>
ModelOptimizationPolicy.ExecutionAccelerators gpu_execution_accelerator 1 repeated Accelerator
ModelOptimizationPolicy.ExecutionAccelerators cpu_execution_accelerator 2 repeated Accelerator
ModelOptimizationPolicy.PinnedMemoryBuffer enable 1 bool
ModelOptimizationPolicy graph 1 Graph
ModelOptimizationPolicy priority 2 ModelPriority
ModelOptimizationPolicy cuda 3 Cuda
ModelOptimizationPolicy execution_accelerators 4 ExecutionAccelerators
ModelOptimizationPolicy input_pinned_memory 5 PinnedMemoryBuffer
ModelOptimizationPolicy output_pinned_memory 6 PinnedMemoryBuffer
ModelOptimizationPolicy gather_kernel_buffer_threshold 7 uint32
ModelOptimizationPolicy eager_batching 8 bool
ModelQueuePolicy timeout_action 1 TimeoutAction
ModelQueuePolicy default_timeout_microseconds 2 uint64
ModelQueuePolicy allow_timeout_override 3 bool
ModelQueuePolicy max_queue_size 4 uint32
ModelDynamicBatching preferred_batch_size 1 repeated int32
ModelDynamicBatching max_queue_delay_microseconds 2 uint64
ModelDynamicBatching preserve_ordering 3 bool
ModelDynamicBatching priority_levels 4 uint64
ModelDynamicBatching default_priority_level 5 uint64
ModelDynamicBatching default_queue_policy 6 ModelQueuePolicy
ModelDynamicBatching priority_queue_policy 7 map<uint64, ModelQueuePolicy>
ModelSequenceBatching.Control kind 1 Kind
ModelSequenceBatching.Control int32_false_true 2 repeated int32
ModelSequenceBatching.Control fp32_false_true 3 repeated float
ModelSequenceBatching.Control bool_false_true 5 repeated bool
ModelSequenceBatching.Control data_type 4 DataType
ModelSequenceBatching.ControlInput name 1 string
ModelSequenceBatching.ControlInput control 2 repeated Control
ModelSequenceBatching.InitialState data_type 1 DataType
ModelSequenceBatching.InitialState dims 2 repeated int64
ModelSequenceBatching.InitialState zero_data 3 bool
ModelSequenceBatching.InitialState data_file 4 string
ModelSequenceBatching.InitialState name 5 string
ModelSequenceBatching.State input_name 1 string
ModelSequenceBatching.State output_name 2 string
ModelSequenceBatching.State data_type 3 DataType
ModelSequenceBatching.State dims 4 repeated int64
ModelSequenceBatching.State initial_state 5 repeated InitialState
ModelSequenceBatching.State use_same_buffer_for_input_output 6 bool
ModelSequenceBatching.State use_growable_memory 7 bool
ModelSequenceBatching.StrategyDirect max_queue_delay_microseconds 1 uint64
ModelSequenceBatching.StrategyDirect minimum_slot_utilization 2 float
ModelSequenceBatching.StrategyOldest max_candidate_sequences 1 int32
ModelSequenceBatching.StrategyOldest preferred_batch_size 2 repeated int32
ModelSequenceBatching.StrategyOldest max_queue_delay_microseconds 3 uint64
ModelSequenceBatching.StrategyOldest preserve_ordering 4 bool
ModelSequenceBatching direct 3 StrategyDirect
ModelSequenceBatching oldest 4 StrategyOldest
ModelSequenceBatching max_sequence_idle_microseconds 1 uint64
ModelSequenceBatching control_input 2 repeated ControlInput
ModelSequenceBatching state 5 repeated State
ModelSequenceBatching iterative_sequence 6 bool
ModelEnsembling.Step model_name 1 string
ModelEnsembling.Step model_version 2 int64
ModelEnsembling.Step input_map 3 map<string, string>
ModelEnsembling.Step output_map 4 map<string, string>
ModelEnsembling.Step model_namespace 5 string
ModelEnsembling step 1 repeated Step
ModelEnsembling max_inflight_requests 2 uint32
ModelParameter string_value 1 string
ModelWarmup.Input data_type 1 DataType
ModelWarmup.Input dims 2 repeated int64
ModelWarmup.Input zero_data 3 bool
ModelWarmup.Input random_data 4 bool
ModelWarmup.Input input_data_file 5 string
ModelWarmup name 1 string
ModelWarmup batch_size 2 uint32
ModelWarmup inputs 3 map<string, Input>
ModelWarmup count 4 uint32
ModelOperations op_library_filename 1 repeated string
ModelTransactionPolicy decoupled 1 bool
ModelRepositoryAgents.Agent name 1 string
ModelRepositoryAgents.Agent parameters 2 map<string, string>
ModelRepositoryAgents agents 1 repeated Agent
ModelResponseCache enable 1 bool
ModelMetrics.MetricControl.MetricIdentifier family 1 string
ModelMetrics.MetricControl.HistogramOptions buckets 1 repeated double
ModelMetrics.MetricControl metric_identifier 1 MetricIdentifier
ModelMetrics.MetricControl histogram_options 2 HistogramOptions
ModelMetrics metric_control 1 repeated MetricControl
ModelConfig name 1 string
ModelConfig platform 2 string
ModelConfig backend 17 string
ModelConfig runtime 25 string
ModelConfig version_policy 3 ModelVersionPolicy
ModelConfig max_batch_size 4 int32
ModelConfig input 5 repeated ModelInput
ModelConfig output 6 repeated ModelOutput
ModelConfig batch_input 20 repeated BatchInput
ModelConfig batch_output 21 repeated BatchOutput
ModelConfig optimization 12 ModelOptimizationPolicy
ModelConfig dynamic_batching 11 ModelDynamicBatching
ModelConfig sequence_batching 13 ModelSequenceBatching
ModelConfig ensemble_scheduling 15 ModelEnsembling
ModelConfig instance_group 7 repeated ModelInstanceGroup
ModelConfig default_model_filename 8 string
ModelConfig cc_model_filenames 9 map<string, string>
ModelConfig metric_tags 10 map<string, string>
ModelConfig parameters 14 map<string, ModelParameter>
ModelConfig model_warmup 16 repeated ModelWarmup
ModelConfig model_operations 18 ModelOperations
ModelConfig model_transaction_policy 19 ModelTransactionPolicy
ModelConfig model_repository_agents 23 ModelRepositoryAgents
ModelConfig response_cache 24 ModelResponseCache
ModelConfig model_metrics 26 ModelMetrics
"""

ENUMS = {
    "DataType": (
        "TYPE_INVALID TYPE_BOOL TYPE_UINT8 TYPE_UINT16 TYPE_UINT32 TYPE_UINT64 TYPE_INT8 TYPE_INT16 TYPE_INT32 "
        "TYPE_INT64 TYPE_FP16 TYPE_FP32 TYPE_FP64 TYPE_STRING TYPE_BF16"
    ),
    "ModelInstanceGroup.Kind": "KIND_AUTO KIND_GPU KIND_CPU KIND_MODEL",
    "ModelInstanceGroup.SecondaryDevice.SecondaryDeviceKind": "KIND_NVDLA",
    "ModelInput.Format": "FORMAT_NONE FORMAT_NHWC FORMAT_NCHW",
    "BatchInput.Kind": (
        "BATCH_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO "
        "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE BATCH_ITEM_SHAPE BATCH_ITEM_SHAPE_FLATTEN"
    ),
    "BatchOutput.Kind": "BATCH_SCATTER_WITH_INPUT_SHAPE",
    "ModelOptimizationPolicy.ModelPriority": "PRIORITY_DEFAULT PRIORITY_MAX PRIORITY_MIN",
    "ModelQueuePolicy.TimeoutAction": "REJECT DELAY",
    "ModelSequenceBatching.Control.Kind": (
        "CONTROL_SEQUENCE_START CONTROL_SEQUENCE_READY CONTROL_SEQUENCE_END CONTROL_SEQUENCE_CORRID"
    ),
}

ONEOFS = {
    "ModelVersionPolicy": {"policy_choice": ["latest", "all", "specific"]},
    "ModelSequenceBatching": {"strategy_choice": ["direct", "oldest"]},
    "ModelSequenceBatching.InitialState": {"state_data": ["zero_data", "data_file"]},
    "ModelWarmup.Input": {"input_data_type": ["zero_data", "random_data", "input_data_file"]},
    "ModelConfig": {"scheduling_choice": ["dynamic_batching", "sequence_batching", "ensemble_scheduling"]},
}


def _messages(container, prefix=""):
    for message in container:
        if not message.GetOptions().map_entry:
            name = prefix + message.name
            yield name, message
            yield from _messages(message.nested_types, f"{name}.")


def _type_name(field):
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        key, value = field.message_type.fields
        return f"map<{_type_name(key)}, {_type_name(value)}>"
    named = field.message_type or field.enum_type
    name = named.name if named is not None else FieldDescriptorProto.Type.Name(field.type)[len("TYPE_") :].lower()
    return f"repeated {name}" if field.is_repeated else name


@pytest.fixture(name="messages", scope="module")
def _messages_fixture():
    return dict(_messages(CONFIG_DESCRIPTOR.file.message_types_by_name.values()))


def test_every_field_has_its_name_number_and_type(messages):
    """The 164 fields of the 45 messages that have any are the golden ones, in the golden order."""
    golden = {}
    for line in FIELDS.strip().splitlines():
        message, name, number, type_name = line.split(" ", 3)
        golden.setdefault(message, []).append((name, int(number), type_name))
    found = {
        name: [(field.name, field.number, _type_name(field)) for field in message.fields]
        for name, message in messages.items()
        if message.fields
    }
    assert found == golden
    assert (sum(map(len, golden.values())), len(golden)) == (164, 45)


def test_every_enum_has_its_names_and_numbers(messages):
    """Values of an enum count from 0 in the golden order."""
    found = dict(CONFIG_DESCRIPTOR.file.enum_types_by_name)
    for name, message in messages.items():
        found |= {f"{name}.{enum.name}": enum for enum in message.enum_types}
    golden = {name: list(enumerate(values.split())) for name, values in ENUMS.items()}
    assert {name: [(value.number, value.name) for value in enum.values] for name, enum in found.items()} == golden


def test_every_choice_is_a_oneof(messages):
    """Fields that exclude each other are in a oneof, by Triton's name for it."""
    found = {
        name: {oneof.name: [field.name for field in oneof.fields] for oneof in message.oneofs}
        for name, message in messages.items()
        if message.oneofs
    }
    assert found == ONEOFS


@pytest.mark.processes
def test_the_descriptors_are_those_of_the_sources(tmp_path):
    """The descriptors are up to date: scripts/generate_proto must be run after each change of a *.proto."""
    pytest.importorskip("grpc_tools")
    subprocess.run([sys.executable, "-W", "ignore", GENERATE_PROTO, tmp_path], check=True)
    kept = {path.name: path for path in FOLDER.parent.rglob("*.binpb")}
    assert {path.name for path in tmp_path.iterdir()} == set(kept)
    for name, path in kept.items():
        generated = FileDescriptorSet.FromString((tmp_path / name).read_bytes())
        assert generated == FileDescriptorSet.FromString(path.read_bytes()), name


def test_the_pool_is_not_the_default_one():
    """The same names may be in another pool with other contents; serialised messages pass between the two."""
    other = DescriptorPool()
    for file in FileDescriptorSet.FromString((FOLDER / "model_config.binpb").read_bytes()).file:
        other.Add(file)
    assert other.FindMessageTypeByName("inference.ModelConfig") is not CONFIG_DESCRIPTOR
    assert POOL.FindMessageTypeByName("inference.ModelConfig") is CONFIG_DESCRIPTOR


@pytest.mark.processes
def test_a_process_may_also_hold_the_client_library():
    """tritonclient's own inference.ModelConfig reads ours, and ours reads it."""
    program = """
from tritonclient.grpc import model_config_pb2
from pyruntime.runtime.config.schema import new_model_config
ours = new_model_config()
ours.name, ours.max_batch_size = "m", 4
ours.instance_group.add(name="g", count=2, kind=2)
ours.parameters["k"].string_value = "v"
theirs = model_config_pb2.ModelConfig.FromString(ours.SerializeToString())
assert str(theirs) == str(ours) and theirs.parameters["k"].string_value == "v"
back = new_model_config()
back.ParseFromString(theirs.SerializeToString())
assert back == ours
"""
    pytest.importorskip("tritonclient")
    pytest.importorskip("grpc")
    subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=True)


def test_new_configs_are_empty_and_separate():
    """Each call makes another message."""
    first, second = new_model_config(), new_model_config()
    first.name = "m"
    assert second.name == ""
