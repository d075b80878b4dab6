# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The arguments of the extension for a model and an instance in a process of their own."""

import pytest

from pyruntime.backends.native.arguments import backend_name, instance, is_decoupled, memory_pools, output_names

GROUPS = [
    {"name": "a", "count": 1},
    {
        "name": "m_1",
        "host_policy": "near",
        "passive": True,
        "profile": ["p"],
        "secondary_devices": [{"kind": "KIND_NVDLA", "device_id": "2"}],
    },
]


def instance_of(name, kind="CPU", device=0):
    """The arguments for an instance."""
    args = {
        "model_instance_name": name,
        "model_instance_kind": kind,
        "model_instance_device_id": str(device),
    }
    return instance({"instance_group": GROUPS}, args, {"near": {"numa-node": "1"}})


def test_backend_name():
    """The name is that of the configuration, or else the name of the library."""
    assert backend_name({"backend": "b"}, "/x/libtriton_c.so") == "b"
    assert backend_name({}, "/x/libtriton_c.so") == "c"
    assert backend_name({}, "/x/other.so") == ""


def test_model():
    """Whether it is decoupled, and its outputs."""
    config = {"output": [{"name": "O"}, {"name": "P"}], "model_transaction_policy": {"decoupled": True}}
    assert (is_decoupled(config), output_names(config)) == (True, ["O", "P"])
    assert (is_decoupled({}), output_names({})) == (False, [])


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        ({}, {0: 1, 2: 3}),
        ({"gpu": "2", "visible_gpus": "own"}, {0: 3}),
        ({"gpu": "5", "visible_gpus": "own"}, {}),
        ({"gpu": "2", "visible_gpus": "all"}, {0: 1, 2: 3}),
    ],
)
def test_memory_pools(gpu, expected):
    """A process that sees its own GPU only has it as number 0."""
    assert memory_pools({"memory_pools": "[7, [[0, 1], [2, 3]]]", **gpu}) == (7, expected)


@pytest.mark.parametrize(
    ("name", "kind", "device", "expected"),
    [
        ("a_0", "CPU", 0, ("a_0", 1, 0, False, [], [], '{"cpu":{}}')),
        ("a_3", "GPU", 2, ("a_3", 2, 2, False, [], [], '{"gpu_2":{}}')),
        ("m_1_0", "MODEL", 0, ("m_1_0", 3, 0, True, ["p"], [("KIND_NVDLA", 2)], '{"near":{"numa-node":"1"}}')),
        ("nobodys_0", "AUTO", 0, ("nobodys_0", 0, 0, False, [], [], '{"cpu":{}}')),
    ],
)
def test_instance(name, kind, device, expected):
    """The properties of an instance are those of its group, which its name identifies."""
    assert instance_of(name, kind, device) == expected
