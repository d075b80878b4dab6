# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles the packages to byte code before the first test, as an installation from a wheel does.

Tests start some two thousand processes that import them. In an editable installation nothing else compiles them where
PYTHONDONTWRITEBYTECODE is set, and without byte code a server spends most of its start on compiling.
"""

import compileall
import configparser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def package_folders():
    """The folders of all packages of setup.cfg."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    lines = setup["options"]["package_dir"].strip().splitlines()
    return [ROOT / line.partition("=")[2].strip() for line in lines]


def pytest_configure(config):
    if hasattr(config, "workerinput"):  # the process that starts the workers has done it
        return
    for folder in package_folders():
        # What cannot be compiled fails in the test that imports it, and says why there.
        compileall.compile_dir(folder, quiet=2)
