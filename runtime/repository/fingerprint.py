# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Computes fingerprints of the files and the configuration that a version is loaded from.

A version with an unchanged fingerprint need not be loaded again. If it differs in the instances alone, they are
exchanged while the version serves.

Files count by path, size and time of change, and are not read. Python's caches, temporary files of editors and versions
that are not served do not count. Of a model that is one file (`MODULES_ONLY`) only modules and packages count.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path

from pyruntime.runtime.config.preferred_groups import with_groups_of
from pyruntime.runtime.config.schema import Config, new_model_config
from pyruntime.runtime.repository.scan import MODULES_ONLY, ModelFolder
from pyruntime.runtime.repository.versions import version_numbers

_CONFIGURATION = ("config.pbtxt", "configs")
_MODULE_SUFFIXES = (".py", ".so")

# Whether an entry of a folder, by the folder and the name, counts.
_Counts = Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """See the module. `shared` is for the files that all versions of a model share, `own` for those of one version.

    `config` is for the configuration without its instance groups, and `instances` for these.
    """

    path: str
    config: bytes
    shared: bytes
    own: bytes
    instances: bytes = b""

    def differs_in_instances_only(self, other: Fingerprint) -> bool:
        """Whether a version with one of the two fingerprints becomes one with the other by an exchange of instances."""
        return self != other and replace(self, instances=other.instances) == other


def fingerprints(
    folder: ModelFolder, config: Config, versions: tuple[int, ...], *, default_instances: bool = False
) -> dict[int, Fingerprint]:
    """The fingerprint of each of `versions` of a model; `config` is its configuration before the model completes it.

    With `default_instances` it sets no instances, so that the model's backend may choose their number.
    """
    root = Path(folder.path)
    text = config_of_versions(config).SerializeToString(deterministic=True)
    shared, counts = _stamp(root, _shared_in(root)), _of_versions(root)
    instances = (
        b"" if default_instances else with_groups_of(new_model_config(), config).SerializeToString(deterministic=True)
    )
    return {
        version: Fingerprint(folder.path, text, shared, _stamp(root / str(version), counts), instances)
        for version in versions
    }


def config_of_versions(config: Config) -> Config:
    """The part of a configuration for which a version must be loaded again if it changes.

    The version policy changes no version that it selects, and instances are exchanged while a version serves.
    """
    relevant = type(config)()
    relevant.CopyFrom(config)
    relevant.ClearField("version_policy")
    relevant.ClearField("instance_group")
    return relevant


def whole_fingerprint(folder: ModelFolder, config: Config) -> Fingerprint:
    """The fingerprint of a model with repository agents. It covers all files, because agents may use any of them."""
    files = _stamp(Path(folder.path), lambda path, name: path != folder.path or name not in _CONFIGURATION)
    return Fingerprint(folder.path, config.SerializeToString(deterministic=True), files, b"")


def folder_stamp(path: str) -> bytes:
    """A value that changes with any file in a model's folder that may affect one of its versions."""
    of_versions = _of_versions(Path(path))
    return _stamp(Path(path), lambda folder, name: folder == path or of_versions(folder, name))


def config_stamp(folder: ModelFolder) -> tuple[int, int] | None:
    """A value that changes with the configuration file of a model; None if there is no such file."""
    if folder.config_path is None:
        return None
    try:
        found = os.stat(folder.config_path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _shared_in(root: Path) -> _Counts:
    """Entries of a model's folder that belong to all versions. The configuration counts by its contents."""
    top = os.fspath(root)
    return lambda folder, name: folder != top or not (version_numbers([name]) or name in _CONFIGURATION)


def _of_versions(root: Path) -> _Counts:
    """Entries of the versions of a model that count."""
    return _is_module if (root / MODULES_ONLY).exists() else lambda folder, name: True


def _is_module(folder: str, name: str) -> bool:
    return name.endswith(_MODULE_SUFFIXES) or os.path.isfile(os.path.join(folder, name, "__init__.py"))


def _stamp(root: Path, counts: _Counts) -> bytes:
    digest = blake2b(digest_size=16)
    for path, mtime_ns, size in sorted(_files(root, counts)):
        digest.update(f"{path!a} {mtime_ns} {size}\n".encode())
    return digest.digest()


def _files(root: Path, counts: _Counts) -> Iterator[tuple[str, int, int]]:
    """(path, time of change, size) of all files below a folder that count, as all folders around them do.

    Follows links. Ignores unreadable entries, because the load then reports the error.
    """
    walked: set[tuple[int, int]] = set()
    _is_new(os.fspath(root), walked)
    for folder, folders, files in os.walk(root, followlinks=True):
        entries = {name for name in (*folders, *files) if _is_meant(name) and counts(folder, name)}
        # Sorted, so that of two links to one folder always the same one is followed.
        folders[:] = [
            name for name in sorted(entries.intersection(folders)) if _is_new(os.path.join(folder, name), walked)
        ]
        for name in entries.intersection(files):
            path = os.path.join(folder, name)
            try:
                found = os.stat(path)
            except OSError:
                continue
            yield os.path.relpath(path, root), found.st_mtime_ns, found.st_size


def _is_meant(name: str) -> bool:
    return name != "__pycache__" and not name.startswith(".") and not name.endswith("~")


def _is_new(path: str, walked: set[tuple[int, int]]) -> bool:
    """Whether a folder is visited for the first time. Links may form cycles."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    key = (found.st_dev, found.st_ino)
    if key in walked:
        return False
    walked.add(key)
    return True
