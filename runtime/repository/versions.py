# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the version numbers of clients, and selects the versions that a model serves. (pure)"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.repository.lifecycle import LATEST
from pyruntime.utils.errors import Code, InferenceError

# The most versions that a specific policy may name. Each named version that does not exist gets an error of its own.
SPECIFIC_VERSIONS_MAX = 1000
# Triton stores versions in signed 64-bit integers, which have at most 19 digits.
VERSION_MAX = (1 << 63) - 1
VERSION_DIGITS_MAX = 19
_VERSION = re.compile(r"[1-9][0-9]*", re.ASCII)
# What C++ reads as a number, if more or less of it.
_NUMBER = re.compile(r"\s*[+-]?[0-9]{1,18}(?![0-9]).*", re.ASCII | re.DOTALL)
# The part of a wrong version that a message shows.
SHOWN_LENGTH_MAX = 64


def parse_version(text: str) -> int:
    """The version in `text`, LATEST for "". Raises InferenceError (INVALID_ARG)."""
    if not text:
        return LATEST
    version = int(text) if text.isascii() and text.isdigit() and len(text) <= VERSION_DIGITS_MAX else 0
    if 0 < version <= VERSION_MAX:
        return version
    # Triton names the function of C++ that could not read it.
    details = "" if _NUMBER.fullmatch(text) else " (details: stol)"
    raise InferenceError(
        f"failed to get model version from specified version string '{text[:SHOWN_LENGTH_MAX]}'{details}, "
        "version should be an integral value > 0",
        Code.INVALID_ARG,
    )


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """`version_policy` of a model configuration. `num_versions` is for "latest", `versions` for "specific"."""

    choice: Literal["latest", "all", "specific"] = "latest"
    num_versions: int = 1
    versions: tuple[int, ...] = ()

    @classmethod
    def from_config(cls, message: Config) -> VersionPolicy:
        """The policy of a ModelConfig message; without one, the latest version is served."""
        policy = message.version_policy
        choice = policy.WhichOneof("policy_choice")
        if choice == "all":
            return cls("all")
        if choice == "specific":
            return cls("specific", versions=tuple(policy.specific.versions))
        return cls("latest", num_versions=policy.latest.num_versions or 1)


@dataclass(frozen=True, slots=True)
class Selection:
    """The versions to serve, in ascending order, and the reason for each version in `missing` that cannot be served.

    `problem` says why no version of the model can be served; None if at least one can.
    """

    versions: tuple[int, ...]
    missing: dict[int, str]
    problem: str | None


def version_numbers(names: Iterable[str]) -> tuple[int, ...]:
    """The folder names that are versions, ascending: whole numbers from 1 on, without leading zeros."""
    numbers = (int(name) for name in names if _VERSION.fullmatch(name))
    return tuple(sorted(number for number in numbers if number <= VERSION_MAX))


def select_versions(policy: VersionPolicy, names: Iterable[str], model: str) -> Selection:
    """Apply the policy to the names of the folders in a model's folder. Ignores names that are not versions."""
    present = version_numbers(names)
    missing: dict[int, str] = {}
    match policy.choice:
        case "latest":
            versions = present[-policy.num_versions :]
        case "all":
            versions = present
        case "specific":
            asked = tuple(sorted(set(policy.versions)))
            if len(asked) > SPECIFIC_VERSIONS_MAX:
                problem = f"the version policy of model '{model}' names {len(asked)} versions"
                return Selection((), {}, f"{problem}, and may name {SPECIFIC_VERSIONS_MAX}")
            versions = tuple(version for version in asked if version in present)
            missing = {
                version: f"version {version} is specified for model '{model}', but the version directory is not present"
                for version in asked
                if version not in present
            }
    problem = f"at least one version must be available under the version policy of model '{model}'"
    if not present:  # as of an ensemble that was kept in git, which has no empty folders
        problem += "; its folder has no version's folder, such as '1', which may be empty for an ensemble"
    return Selection(versions, missing, None if versions else problem)
