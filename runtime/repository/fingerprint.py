# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What a version was loaded from, as a value: while it is the same there is no need to load the version again.

Files count by path, size and time of change, and are not read. Python's caches and what editors leave lying about do
not count, nor does anything of the versions that are not served.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from pyruntime.runtime.config.schema import Config
from pyruntime.runtime.repository.scan import ModelFolder
from pyruntime.runtime.repository.versions import version_numbers

_CONFIGURATION = ("config.pbtxt", "configs")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """See the module. `shared` stands for the files that all versions of a model have, `own` for one version's."""

    path: str
    config: bytes
    shared: bytes
    own: bytes


def fingerprints(folder: ModelFolder, config: Config, versions: tuple[int, ...]) -> dict[int, Fingerprint]:
    """The fingerprint of each of `versions` of a model; `config` is its configuration before the model completes it."""
    root = Path(folder.path)
    # Which versions are served says nothing about any one of them.
    relevant = type(config)()
    relevant.CopyFrom(config)
    relevant.ClearField("version_policy")
    text = relevant.SerializeToString(deterministic=True)
    shared = _stamp(root, _is_shared)
    return {
        version: Fingerprint(folder.path, text, shared, _stamp(root / str(version), lambda name: True))
        for version in versions
    }


def whole_fingerprint(folder: ModelFolder, config: Config) -> Fingerprint:
    """That of a model which agents put together from its folder: what they make of any file, nobody knows."""
    files = _stamp(Path(folder.path), lambda name: name not in _CONFIGURATION)
    return Fingerprint(folder.path, config.SerializeToString(deterministic=True), files, b"")


def folder_stamp(path: str) -> bytes:
    """Changes whenever anything in a model's folder does that may matter to one of its versions."""
    return _stamp(Path(path), lambda name: True)


def config_stamp(folder: ModelFolder) -> tuple[int, int] | None:
    """Changes whenever the file of a model's configuration does; None if there is no file."""
    if folder.config_path is None:
        return None
    try:
        found = os.stat(folder.config_path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def _is_shared(name: str) -> bool:
    """Whether what lies directly in a model's folder is every version's: the configuration counts by what it says."""
    return not version_numbers([name]) and name not in _CONFIGURATION


def _stamp(root: Path, counts: Callable[[str], bool]) -> bytes:
    digest = blake2b(digest_size=16)
    for path, mtime_ns, size in sorted(_files(root, counts)):
        digest.update(f"{path!a} {mtime_ns} {size}\n".encode())
    return digest.digest()


def _files(root: Path, counts: Callable[[str], bool]) -> Iterator[tuple[str, int, int]]:
    """(path, time of change, size) of all files below a folder, of its own entries only of those that count.

    Links are followed. What cannot be read counts as not there: loading it says why it is not.
    """
    walked: set[tuple[int, int]] = set()
    _is_new(os.fspath(root), walked)
    for folder, folders, files in os.walk(root, followlinks=True):
        at_root = folder == os.fspath(root)
        entries = {name for name in (*folders, *files) if _is_meant(name) and (not at_root or counts(name))}
        # In order, so that of two links to one folder it is always the same that is walked.
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
    """Whether a folder was not walked yet: links may lead in circles."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    key = (found.st_dev, found.st_ino)
    if key in walked:
        return False
    walked.add(key)
    return True
