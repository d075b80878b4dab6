# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a group gets that names none, in which order, and why."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.gpus.available import NO_GPUS, AvailableGpus
from pyruntime.runtime.gpus.placement import NO_PLACEMENT, place, spread
from pyruntime.utils.gpu.driver import GpuProperties

GIB = 1 << 30


def gpus_with(*free, total=16, limits=None, capabilities=()):
    """GPUs with so many GiB of free memory."""
    capabilities = capabilities or [(8, 0)] * len(free)
    return AvailableGpus(
        tuple(
            GpuProperties(number, f"GPU-{number}", "G", capability, total * GIB, int(each * GIB), False)
            for number, (each, capability) in enumerate(zip(free, capabilities, strict=True))
        ),
        limits=limits or {},
    )


def test_no_gpus():
    """There is nothing to choose from, and nothing to say."""
    assert place("m", NO_GPUS) == NO_PLACEMENT == ((), "")
    assert place("m", gpus_with(16, capabilities=[(3, 5)])) == NO_PLACEMENT


def test_the_emptiest_first():
    """Every GPU gets instances, in the order of its free memory."""
    assert place("m", gpus_with(4, 16, 9.5)) == (
        (1, 2, 0),
        "on GPU 1 (16.0 of 16.0 GiB free), GPU 2 (9.5 of 16.0 GiB free), GPU 0 (4.0 of 16.0 GiB free)",
    )


def test_equal_memory():
    """Different models begin with different GPUs, and each with the same one every time."""
    gpus = gpus_with(15.2, 15.4, 15.9)
    firsts = {name: place(name, gpus).numbers[0] for name in "abcdefgh"}
    assert set(firsts.values()) == {0, 1, 2}
    assert firsts == {name: place(name, gpus).numbers[0] for name in "abcdefgh"}


def test_equal_memory_with_gaps():
    """So they do if a GPU between those that can be used is too old."""
    gpus = gpus_with(16, 16, 16, capabilities=[(8, 0), (3, 5), (8, 0)])
    assert {place(name, gpus).numbers for name in "abcdefgh"} == {(0, 2), (2, 0)}


def test_no_room():
    """A GPU on which not even a context fits is left out, and one over the operator's limit."""
    placement = place("m", gpus_with(0.25, 8, 8, limits={2: 0.4}))
    assert placement.numbers == (1,)
    assert placement.reason == (
        "on GPU 1 (8.0 of 16.0 GiB free), and not on GPU 0 (0.2 of 16.0 GiB free), GPU 2 (8.0 of 16.0 GiB free), "
        "which have no room"
    )
    assert place("m", gpus_with(0, 8)).reason.endswith("and not on GPU 0 (0.0 of 16.0 GiB free), which has no room")


def test_no_room_anywhere():
    """Then the model is loaded where it would be otherwise, and the load tells the reason."""
    assert place("m", gpus_with(0, 0.1)) == (
        (0, 1),
        "on GPU 0 (0.0 of 16.0 GiB free), GPU 1 (0.1 of 16.0 GiB free): none of them has room",
    )


def test_small_gpus():
    """On a slice that is hardly larger than a context, half of it is room enough."""
    assert place("m", gpus_with(0.3, 0.2, total=0.5)).numbers == (0,)


@pytest.mark.parametrize(("kept", "expected"), [((0,), (0, 1)), ((2, 0, 2), (2, 0, 1)), ((7,), (1,))])
def test_instances_stay(kept, expected):
    """A model keeps the GPUs that it has, also full ones, because it is what fills them."""
    assert place("m", gpus_with(0, 8, 0.1), kept).numbers == expected


@given(st.lists(st.integers(0, 20), max_size=8), st.text(max_size=3), st.lists(st.integers(0, 8), max_size=4))
def test_any_memory(free, name, kept):
    """All GPUs are chosen at most once, and one at least."""
    gpus = gpus_with(*free, total=20)
    numbers = place(name, gpus, kept).numbers
    assert len(set(numbers)) == len(numbers)
    assert set(numbers) <= set(gpus.numbers)
    assert bool(numbers) == bool(free)


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ({}, "abcd"),
        ({"a": 1, "b": 1, "c": 0, "d": 0}, "acbd"),
        ({"b": 0, "c": 0}, "abcd"),
        ({"a": 2, "b": 2, "c": 2, "d": 0}, "adbc"),
    ],
)
def test_order_of_instances(gpus, expected):
    """Requests that come one by one find an instance on another GPU, as long as one is free."""
    instances = [SimpleNamespace(name=name) for name in "abcd"]
    assert "".join(each.name for each in spread(instances, gpus)) == expected
