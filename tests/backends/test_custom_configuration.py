# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of custom libraries that tests on the CPU do not cover, and the ABI in ctypes."""

import ctypes
import json

import pytest

from pyruntime.backends.custom import abi, configuration
from pyruntime.backends.custom.devices import compute_capability
from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.render import render
from pyruntime.runtime.config.schema import new_model_config
from pyruntime.utils.errors import LoadError

FULL = """
platform: "custom" max_batch_size: 8
input [ { name: "I" data_type: TYPE_STRING dims: [ -1, 3 ] reshape { shape: [ 3, -1 ] } optional: true } ]
output [ { name: "O" data_type: TYPE_FP32 dims: [ 1 ] label_filename: "labels.txt" } ]
instance_group [ { count: 2 kind: KIND_GPU gpus: [ 0, 1 ] }, { name: "c" kind: KIND_CPU passive: true } ]
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 18446744073709551615
                   priority_queue_policy { key: 2 value { timeout_action: DELAY } } }
cc_model_filenames [ { key: "7.5" value: "a.so" }, { key: "8.0" value: "b.so" } ]
parameters [ { key: "b" value { string_value: "2" } }, { key: "a" value { string_value: "\\001\\"\\n\\303\\244" } } ]
model_warmup { name: "w" inputs { key: "I" value { data_type: TYPE_STRING dims: [ 1, 3 ] zero_data: true } } }
metric_tags { key: "t" value: "x" }
"""
SEQUENCES = """
platform: "custom"
sequence_batching { direct { minimum_slot_utilization: 0.1 } control_input [
    { name: "START" control [ { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1.5 ] } ] },
    { name: "CORRID" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] } ] }
"""


def normalized(text, gpus=(0, 1)):
    config = parse_model_config(text, "config.pbtxt")
    return normalize(config, directory_name="m", files=[], gpus=gpus)


@pytest.mark.parametrize("text", ["platform: 'custom'", FULL, SEQUENCES])
def test_serialized_configuration(text):
    """The library gets the complete normalised configuration, though it came as JSON."""
    config = normalized(text)
    serialized = configuration.serialize(render(config).decode())
    parsed = new_model_config()
    parsed.ParseFromString(serialized)
    assert parsed == config
    assert serialized == configuration.serialize(render(config).decode())


@pytest.mark.parametrize(
    ("instance", "kind", "device", "name"),
    [
        ("m_0_0", "GPU", 0, "m_0_0_gpu0"),
        ("m_0_1", "GPU", 0, "m_0_1_gpu0"),
        ("m_0_2", "GPU", 1, "m_0_0_gpu1"),
        ("m_0_3", "GPU", 1, "m_0_1_gpu1"),
        ("c_0", "CPU", 0, "c_0_cpu"),
        ("c_0", "MODEL", 0, "c_0_cpu"),
    ],
)
def test_instance_name(instance, kind, device, name):
    """Names of instances end with their place, and on each GPU their numbers begin with 0."""
    args = {
        "model_instance_name": instance,
        "model_instance_kind": kind,
        "model_instance_device_id": str(device),
    }
    assert configuration.instance_name(json.loads(render(normalized(FULL))), args) == name
    assert configuration.gpu_device_id(args) == (device if kind == "GPU" else -1)


def test_instance_name_of_a_process_with_one_gpu():
    """The GPU is number 0 for the library, and has the server's number in the name, which is unique so."""
    args = {"model_instance_name": "b_3", "model_instance_kind": "GPU", "model_instance_device_id": "0"}
    config = {"instance_group": [{"name": "b", "count": 2}]}
    assert configuration.instance_name(config, args, "5") == "b_1_gpu5"
    assert configuration.gpu_device_id(args) == 0


@pytest.mark.parametrize(
    ("capability", "filename"), [("", "libcustom.so"), ("7.5", "a.so"), ("8.0", "b.so"), ("8.6", "libcustom.so")]
)
def test_library_filename(capability, filename):
    """A GPU has the library of its compute capability, if there is one; all else has the default one."""
    assert configuration.library_filename(json.loads(render(normalized(FULL))), capability) == filename


def test_library_filename_of_a_backend():
    """Without the platform the configuration names no file, and the default is the same."""
    assert configuration.library_filename({"default_model_filename": ""}, "") == "libcustom.so"
    assert configuration.library_filename({"default_model_filename": "x.so"}, "") == "x.so"


def test_output_datatypes():
    """Libraries do not say of which datatype their outputs are; the configuration does."""
    config = {"output": [{"name": "A", "data_type": "TYPE_STRING"}, {"name": "B", "data_type": "TYPE_FP16"}]}
    assert configuration.output_datatypes(config) == {"A": "BYTES", "B": "FP16"}


def test_compute_capability(compile_library):
    """The driver reports the compute capability of each GPU."""
    driver = str(compile_library("cuda.c"))
    assert [compute_capability(device, driver) for device in (0, 1)] == ["7.0", "8.0"]
    with pytest.raises(LoadError, match=r"^the compute capability of GPU 2 cannot be had: CUDA error 101$"):
        compute_capability(2, driver)


def test_no_driver():
    """Without a driver the compute capability is unknown."""
    with pytest.raises(LoadError, match=r"^the compute capability of GPU 0 cannot be had: libnowhere\.so"):
        compute_capability(0, "libnowhere.so")


@pytest.mark.parametrize(
    ("symbol", "structure"), [("initialize_data", abi.CustomInitializeData), ("payload", abi.CustomPayload)]
)
def test_layout(compile_library, symbol, structure):
    """Fields are where a compiler has them."""
    count = len(structure._fields_) + 1
    compiled = (ctypes.c_size_t * count).in_dll(ctypes.CDLL(compile_library("custom/layout.c")), symbol)
    offsets = [getattr(structure, name).offset for name, _ in structure._fields_]
    assert list(compiled) == [*offsets, ctypes.sizeof(structure)]
    assert ctypes.sizeof(structure) == {"initialize_data": 48, "payload": 72}[symbol]


def test_header_in_cpp(compile_library):
    """The header is one of C++ as well, and names its functions as C does."""
    assert b"CustomExecuteV2\0" in compile_library("custom/header.cc").read_bytes()
