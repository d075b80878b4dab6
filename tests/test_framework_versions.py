# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The report with which .ci/run and scripts/test-frameworks end."""

import configparser
import runpy
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = "scripts/framework_versions.py"


def test_the_report():
    """It has the version of a package, and says plainly that one is absent."""
    packages = (("no-such-package", "numpy"), ("no-such-package", "nor-such"))
    head, present, absent = runpy.run_path(str(ROOT / SCRIPT))["report"](packages)
    assert head.startswith("Tested under Python 3.")
    assert present == f"  numpy {np.__version__}"
    assert absent == "  no-such-package: not installed, so that the tests which need it were skipped"


def test_what_it_names():
    """The packages of all extras whose tests run the framework itself."""
    names = {name for packages in runpy.run_path(str(ROOT / SCRIPT))["FRAMEWORKS"] for name in packages}
    config = configparser.ConfigParser(interpolation=None)
    config.read(ROOT / "setup.cfg")
    for extra in ("onnxruntime", "pytorch", "sklearn", "transformers", "openvino", "jax", "tensorflow"):
        assert {line.split()[0] for line in config["options.extras_require"][extra].split("\n") if line} <= names


@pytest.mark.parametrize("script", [".ci/run", "scripts/test-frameworks"])
def test_both_end_with_it(script):
    """The result of a run says what it does not show."""
    assert f" {SCRIPT}\n" in "\n".join((ROOT / script).read_text().splitlines()[-2:]) + "\n"
