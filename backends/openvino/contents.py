# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the operations of a model in OpenVINO's own format, and names the file of its weights."""

from __future__ import annotations

import os
import re
from xml.etree import ElementTree

from pyruntime.backends.onnxruntime.contents import read_contents as read_onnx
from pyruntime.backends.toolkit.contents import Contents

# The sets of operations that OpenVINO has itself.
_OWN_OPSET = re.compile(r"opset\d+|experimental|ie_internal_opset|gpu_opset|type_relaxed_opset|util")
_WEIGHTS = ".bin"


def read_contents(path: str) -> Contents:
    """The contents of a file, or of the one in a folder of its name. Raises OSError and ValueError."""
    if os.path.isdir(path):
        path = os.path.join(path, os.path.basename(path))
    stem, suffix = os.path.splitext(path)
    if suffix == ".onnx":
        return read_onnx(path)
    if suffix != ".xml":
        return Contents()
    contents = Contents()
    try:
        for _, element in ElementTree.iterparse(path):
            if element.tag == "layer":
                kind, opset = element.get("type", ""), element.get("version", "")
                is_own = _OWN_OPSET.fullmatch(opset) is not None
                contents.add(kind if is_own else f"{opset}::{kind}", not is_own)
            element.clear()
    except ElementTree.ParseError as exc:
        raise ValueError(f"the file is no XML: {exc}") from exc
    if os.path.isfile(stem + _WEIGHTS):
        contents.companions[os.path.basename(stem) + _WEIGHTS] = "model" + _WEIGHTS
    return contents
