# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses a configuration and files that a load request brings in place of those in the repository. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf import json_format

from pyruntime.runtime.config.parse import COMPLAINT_CHARACTERS_MAX, CONFIG_BYTES_MAX
from pyruntime.runtime.config.schema import POOL, Config, new_model_config
from pyruntime.utils.errors import Code, InferenceError

# The files of a model.py and its helpers, not of a data set.
OVERRIDE_FILES_MAX = 1024
# The prefix of a file's path in a request.
FILE_PREFIX = "file:"


def parse_override(text: str) -> Config:
    """The configuration in the JSON `text`. Raises InferenceError INVALID_ARG."""
    if len(text) > CONFIG_BYTES_MAX:
        raise _invalid(f"it has {len(text)} characters, and may have {CONFIG_BYTES_MAX}")
    if not text.lstrip().startswith("{"):
        raise _invalid("expected a JSON object")  # the parser accepts an empty list
    config = new_model_config()
    try:
        json_format.Parse(text, config, descriptor_pool=POOL)
    except (json_format.ParseError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # ParseDict raises ParseError for most invalid values, but Python's own errors for values of unexpected types.
        raise _invalid(str(error)[:COMPLAINT_CHARACTERS_MAX]) from error
    return config


def _invalid(complaint: str) -> InferenceError:
    return InferenceError(f"Invalid config override: {complaint}", Code.INVALID_ARG)


def check_files(name: str, config: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that replace a model's folder, by their paths in it. No path leads out of that folder.

    Raises InferenceError INVALID_ARG for an invalid path, or for files without a configuration.
    """
    if not config:
        raise _refused(name, "override model directory requires override model config")
    if len(files) > OVERRIDE_FILES_MAX:
        raise _refused(name, f"{len(files)} override files are more than {OVERRIDE_FILES_MAX}")
    checked = {}
    for key, content in files.items():
        path = key.removeprefix(FILE_PREFIX)
        if path == key:
            raise _refused(name, f"override file '{key}' must be named '{FILE_PREFIX}<path>'")
        if not all(map(_is_plain, path.split("/"))):
            raise _refused(name, f"override file '{path}' must have a path below the model's folder")
        checked[path] = content
    return checked


def _is_plain(part: str) -> bool:
    """Whether one part of a path names an entry of its folder, unlike "." and ".."."""
    return part not in ("", ".", "..") and part.isprintable() and "\\" not in part


def _refused(name: str, reason: str) -> InferenceError:
    return InferenceError(f"failed to load '{name}', {reason}", Code.INVALID_ARG)
