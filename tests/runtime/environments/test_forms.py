# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The meaning of EXECUTION_ENV_PATH, and the kinds of files that it can name."""

import pytest

from pyruntime.runtime.environments.forms import Form, expand, form_of, is_anchored


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/opt/env", "/opt/env"),
        ("env.tar.gz", "/models/m/env.tar.gz"),
        ("../common/env", "/models/m/../common/env"),
        ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", "/models/m/env.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/../$$TRITON_MODEL_DIRECTORY", "/models/m/..//models/m"),
    ],
)
def test_expand(path, meant):
    """Triton's word for the model's folder stands for it wherever it is; relative paths begin there."""
    assert expand(path, "/models/m") == meant


def test_a_path_that_begins_at_the_root_or_at_the_model_names_one_place():
    assert is_anchored("/opt/env")
    assert is_anchored("$$TRITON_MODEL_DIRECTORY/env")
    assert not is_anchored("env.tar.gz")
    assert not is_anchored("../common/env")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("env.tar.gz", Form.ARCHIVE),
        ("Env.TGZ", Form.ARCHIVE),
        ("env.tar.bz2", Form.ARCHIVE),
        ("env.tar.xz", Form.ARCHIVE),
        ("requirements.txt", Form.REQUIREMENTS),
        ("requirements-gpu.txt", Form.REQUIREMENTS),
        ("1/model.py", Form.SCRIPT),
        ("bin/python3.11", Form.INTERPRETER),
        ("my.tar.gz/bin/python", Form.INTERPRETER),
    ],
)
def test_form_of(name, form):
    """The end of a file's name decides on its form, in any folder."""
    assert form_of(name) is form
