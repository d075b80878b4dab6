# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Resources of instances on several devices."""

from pyruntime.runtime.scheduling.resource_grants import ResourceGrants
from pyruntime.runtime.settings import ResourceLimit

from ..model_specs import spec_from

CONFIG = """
instance_group [
  { name: "gpu" count: 2 kind: KIND_GPU rate_limiter { resources [ { name: "R" count: 2 } ] } },
  { name: "cpu" kind: KIND_CPU rate_limiter { resources [ { name: "R" count: 2 } ] } }
]
"""


def test_of_gpus():
    """Each GPU has its own, with the number that configurations use; what is not on a GPU counts as on device 0."""
    grants = ResourceGrants([ResourceLimit("R", 2), ResourceLimit("R", 4, 1)])
    begun = []
    for instance in spec_from(CONFIG, gpus=(0, 1)).instances:
        grants.add(instance.name, instance, "m")
        grants.request(instance.name, lambda name=instance.name: not begun.append(name))
    grants.grant()
    assert begun == ["gpu_0", "gpu_2", "gpu_3"]
    assert [grants.lacking(name) for name in ("gpu_1", "cpu_0")] == [["R"], ["R"]]
