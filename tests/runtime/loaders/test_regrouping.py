# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which instances stay when only the instance groups of a model change."""

from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyruntime.runtime.loaders.regrouping import regroup

from ..model_specs import spec_from


def instances(*named):
    """Instances of these names, each with a signature behind a colon."""
    return [SimpleNamespace(name=name, signature=sign) for name, _, sign in (each.partition(":") for each in named)]


def regrouped(present, wanted):
    """The instances afterwards, those that are new with a plus sign."""
    return [name + ("" if stays else "+") for name, stays in regroup(instances(*present), instances(*wanted))]


@pytest.mark.parametrize(
    ("present", "wanted", "expected"),
    [
        (["m_0_0"], ["m_0_0", "m_0_1", "m_0_2"], ["m_0_0", "m_0_1+", "m_0_2+"]),
        (["m_0_0", "m_0_1", "m_0_2"], ["m_0_0"], ["m_0_0"]),
        (["m_0_0:cpu"], ["m_0_0:gpu"], ["m_0_0+"]),
        # Another order of the groups, or other names: nothing happens.
        (["a_0:x", "b_0:y"], ["b_0:y", "a_0:x"], ["b_0", "a_0"]),
        (["a_0", "a_1"], ["b_0", "b_1"], ["a_0", "a_1"]),
        # The group behind another one becomes the first one.
        (["m_0_0:x", "m_1_0:y", "m_1_1:y"], ["m_0_0:y"], ["m_1_0"]),
        # No name occurs twice.
        (["a_0:x"], ["a_0:y", "b_0:x"], ["a_1+", "a_0"]),
        (["a_0:x"], ["a_0:y", "a_1:y", "b_0:x"], ["a_1+", "a_2+", "a_0"]),
        ([], ["m_0"], ["m_0+"]),
    ],
)
def test_which_stay(present, wanted, expected):
    """Those whose settings are wanted: that of the same name, or else the first."""
    assert regrouped(present, wanted) == expected


names = st.builds("{}_{}".format, st.sampled_from("ab"), st.integers(0, 3))
members = st.lists(
    st.builds(SimpleNamespace, name=names, signature=st.sampled_from("xyz")), max_size=6, unique_by=lambda e: e.name
)


@given(members, members)
def test_any_groups(present, wanted):
    """As many stay as can, each once and as what is wanted; names are unique; what is as wanted is left alone."""
    result = regroup(present, wanted)
    assert len({name for name, _ in result}) == len(wanted)
    staying = [stays for _, stays in result if stays]
    assert len({id(each) for each in staying}) == len(staying)
    assert all(
        stays is None or stays.signature == each.signature for each, (_, stays) in zip(wanted, result, strict=True)
    )
    have, want = (Counter(each.signature for each in group) for group in (present, wanted))
    assert len(staying) == (have & want).total()
    assert regroup(present, present) == [(each.name, each) for each in present]


def test_signatures():
    """Instances of groups that differ in name and count are alike, and of those that differ in anything else not."""

    def signatures(text):
        return {each.signature for each in spec_from(f"instance_group [ {text} ]").instances}

    assert len(signatures("{ count: 2 }, { name: 'b' kind: KIND_CPU }")) == 1
    others = "{ kind: KIND_MODEL }, { passive: true }, { host_policy: 'h' }, { rate_limiter { priority: 2 } }"
    assert len(signatures("{ }, " + others)) == 5
