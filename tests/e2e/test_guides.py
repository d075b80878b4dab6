# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The example on the page of each framework works: its files are written and its commands run, see harness/pages.py.

Blocks without a title, and those of `sh`, are for reading only.
"""

import importlib.util
import shutil
from pathlib import Path

import pytest

from .harness.pages import BLOCK, follow

ROOT = Path(__file__).resolve().parents[2]
GUIDES = ROOT / "docs" / "guides"
STAND_INS = ROOT / "tests" / "stand_ins"
# The modules that the example of a page imports. That of tensorrt.md needs a GPU.
MODULES = {
    "jax": ("jax",),
    "onnxruntime": ("onnxruntime", "onnx"),
    "openvino": ("openvino",),
    "pytorch": ("torch",),
    "sklearn": ("sklearn", "skops"),
    "tensorflow": ("tensorflow",),
    "transformers": ("torch", "transformers"),
    "vllm": (),
}


@pytest.mark.parametrize("page", MODULES)
def test_guide(page, tmp_path, monkeypatch, serving, reserve_ports, wait_until):
    """The model is made, served and called, and answers what the page says. That of vLLM is a stand-in's."""
    missing = [module for module in MODULES[page] if importlib.util.find_spec(module) is None]
    missing += [program for program in ("curl",) if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    if page == "vllm":
        monkeypatch.setenv("PYTHONPATH", str(STAND_INS))
    text = (GUIDES / f"{page}.md").read_text()
    assert [block for block in BLOCK.finditer(text) if block["language"] == "console"]
    follow(text, tmp_path, serving, reserve_ports, wait_until)
