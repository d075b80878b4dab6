# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What the instances of a group need."""

import pytest

from pyruntime.runtime.config.normalize import normalize
from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.rate_limits import amount_of
from pyruntime.runtime.config.validate import validate
from pyruntime.utils.errors import ConfigError

from ..model_specs import spec_from

TENSORS = "name: 'm' backend: 'python' input { name: 'I' data_type: TYPE_FP32 dims: 1 } "


def needs(resources):
    spec = spec_from(TENSORS + f"instance_group {{ rate_limiter {{ {resources} priority: 3 }} }}")
    (instance,) = spec.instances
    assert instance.priority == 3
    return instance.needs


def test_counts():
    """Counts, global and not; a resource of which nothing is needed is left out."""
    assert needs("resources [ { name: 'R' count: 2 }, { name: 'S' global: true count: 1 }, { name: 'T' } ]") == (
        ("R", False, 2),
        ("S", True, 1),
    )


def test_sizes():
    """A size in the name is one in bytes; a number without a unit, or anything else there, is part of the name."""
    assert needs("resources [ { name: 'memory:8G' global: true }, { name: 'a:b:5K' } ]") == (
        ("memory", True, 8 << 30),
        ("a:b", False, 5 << 10),
    )
    assert needs("resources [ { name: 'R:8' count: 1 }, { name: 'R:8g' count: 2 }, { name: ':8G' count: 3 } ]") == (
        ("R:8", False, 1),
        ("R:8g", False, 2),
        (":8G", False, 3),
    )


def test_size_and_count():
    """A resource cannot have both."""
    group = "instance_group { rate_limiter { resources { name: 'memory:8G' count: 2 } } }"
    with pytest.raises(ConfigError) as caught:
        validate(normalize(parse_model_config(TENSORS + group, ""), directory_name="m", files=(), gpus=()), ())
    assert str(caught.value) == (
        "model 'm' has a resource 'memory:8G' with a size in its name and with count 2; give one of them"
    )


@pytest.mark.parametrize(
    ("text", "amount"),
    [("0", 0), ("12", 12), ("2K", 2048), ("1T", 1 << 40), ("", None), ("-1", None), ("1KB", None), ("9" * 19, None)],
)
def test_amounts(text, amount):
    """A count, or a size."""
    assert amount_of(text) == amount
