# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures for tests of environments: a cache of their own, and packages that need no index."""

import io
import tarfile
import zipfile

import pytest


@pytest.fixture
def root(tmp_path, monkeypatch):
    """The folder of the cache, which does not exist yet, and which other tests do not use."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pyruntime" / "environments"


@pytest.fixture(scope="session")
def wheels(tmp_path_factory):
    """A folder with a numpy for any Python, which is one in name only; and a package `tiny`."""
    folder = tmp_path_factory.mktemp("wheels")
    for name, version in [("numpy", "99.0"), ("tiny", "1.0")]:
        about = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", f"__version__ = '{version}'\n")
            wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            wheel.writestr(f"{about}/RECORD", "")
    return folder


@pytest.fixture
def no_index(monkeypatch, wheels):
    """Has pip and uv find the packages in `wheels`, and no others."""
    settings = wheels / "uv.toml"
    settings.write_text(f'no-index = true\nfind-links = ["{wheels}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(settings))
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")


@pytest.fixture
def program():
    """Writes a program of the shell."""

    def write(path, *lines):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        path.chmod(0o755)
        return str(path)

    return write


@pytest.fixture
def pack():
    """Writes a compressed archive of files, {name: text}; files in bin are executable."""

    def write(path, files):
        with tarfile.open(path, "w:gz") as tar:
            for name, text in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(text)
                info.mode = 0o755 if "bin/" in name else 0o644
                tar.addfile(info, io.BytesIO(text.encode()))
        return str(path)

    return write
