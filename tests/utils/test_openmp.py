# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Threads of OpenMP do not spin in processes of models."""

import os

from pyruntime.utils.openmp import POLICY, wait_passively


def test_default(monkeypatch):
    """They sleep."""
    monkeypatch.setenv(POLICY, "")  # so that the test leaves the environment as it was
    monkeypatch.delenv(POLICY)
    wait_passively()
    assert os.environ[POLICY] == "passive"


def test_what_the_environment_says(monkeypatch):
    """It has precedence."""
    monkeypatch.setenv(POLICY, "active")
    wait_passively()
    assert os.environ[POLICY] == "active"
