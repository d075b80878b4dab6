# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Version policies: which of a model's folders are served."""

from types import SimpleNamespace

import pytest

from pyruntime.runtime.repository.versions import (
    SPECIFIC_VERSIONS_MAX,
    VersionPolicy,
    select_versions,
    version_numbers,
)


def config(choice, num_versions=0, versions=()):
    """As much of a ModelConfig message as the policy reads."""
    policy = SimpleNamespace(
        WhichOneof=lambda oneof: choice if oneof == "policy_choice" else None,
        latest=SimpleNamespace(num_versions=num_versions),
        specific=SimpleNamespace(versions=list(versions)),
    )
    return SimpleNamespace(version_policy=policy)


@pytest.mark.parametrize(
    ("message", "policy"),
    [
        (config(None), VersionPolicy("latest", num_versions=1)),
        (config("latest"), VersionPolicy("latest", num_versions=1)),
        (config("latest", num_versions=3), VersionPolicy("latest", num_versions=3)),
        (config("all"), VersionPolicy("all")),
        (config("specific", versions=[3, 1]), VersionPolicy("specific", versions=(3, 1))),
    ],
)
def test_from_config(message, policy):
    """No policy, or a latest one without a number, is the one latest version."""
    assert VersionPolicy.from_config(message) == policy


def test_version_numbers():
    """Versions are whole numbers from 1 on, in plain digits without leading zeros; other names are no concern."""
    names = ["10", "9", "2", "0", "01", "-1", "1.0", "v1", "", "²", "١", "1\n", "configs", str(1 << 63)]  # noqa: RUF001
    assert version_numbers(names) == (2, 9, 10)


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        (VersionPolicy(), (10,)),
        (VersionPolicy("latest", num_versions=2), (3, 10)),
        (VersionPolicy("latest", num_versions=9), (1, 3, 10)),
        (VersionPolicy("all"), (1, 3, 10)),
        (VersionPolicy("specific", versions=(10, 1, 10)), (1, 10)),
    ],
)
def test_select(policy, versions):
    """Latest means the highest numbers, not the longest names; specific versions may be said in any order."""
    selection = select_versions(policy, ["1", "10", "3", "labels"], "m")
    assert selection.versions == versions
    assert selection.missing == {}
    assert selection.problem is None


def test_every_missing_version_is_an_error():
    """Versions that are asked for and not there have one error each; the others are served."""
    selection = select_versions(VersionPolicy("specific", versions=(1, 2, 7)), ["2"], "m")
    assert selection.versions == (2,)
    assert selection.missing == {
        1: "version 1 is specified for model 'm', but the version directory is not present",
        7: "version 7 is specified for model 'm', but the version directory is not present",
    }
    assert selection.problem is None


@pytest.mark.parametrize("policy", [VersionPolicy(), VersionPolicy("all"), VersionPolicy("specific", versions=(1,))])
def test_no_version_at_all(policy):
    """A model without any version cannot be served, and what is missing is said behind Triton's words."""
    selection = select_versions(policy, ["labels"], "m")
    assert selection.versions == ()
    assert selection.problem == (
        "at least one version must be available under the version policy of model 'm'; "
        "its folder has no version's folder, such as '1', which may be empty for an ensemble"
    )


def test_no_version_left():
    """A model whose policy leaves none of its versions cannot be served."""
    selection = select_versions(VersionPolicy("specific", versions=(1,)), ["2"], "m")
    assert selection.versions == ()
    assert selection.problem == "at least one version must be available under the version policy of model 'm'"


def test_too_many_are_specified():
    """A policy with too many versions is refused as a whole: an error for each would take too long."""
    many = tuple(range(1, SPECIFIC_VERSIONS_MAX + 2))
    selection = select_versions(VersionPolicy("specific", versions=many), ["1"], "m")
    assert (selection.versions, selection.missing) == ((), {})
    assert selection.problem == "the version policy of model 'm' names 1001 versions, and may name 1000"
    assert select_versions(VersionPolicy("specific", versions=many[:-1] * 2), ["1"], "m").versions == (1,)
