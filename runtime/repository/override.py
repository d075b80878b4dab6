# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses a configuration and files that a load request brings in place of those in the repository. (pure)"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from posixpath import normpath
from typing import Any

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from pyruntime.runtime.config.parse import COMPLAINT_CHARACTERS_MAX, CONFIG_BYTES_MAX
from pyruntime.runtime.config.schema import CONFIG_DESCRIPTOR, POOL, Config, new_model_config
from pyruntime.runtime.repository.lenient_json import standard_json
from pyruntime.runtime.repository.paths import path_below
from pyruntime.utils.errors import Code, InferenceError

# The files of a model.py and its helpers, not of a data set.
OVERRIDE_FILES_MAX = 1024
# The entries of one list or map of a configuration, of inputs or parameters for instance. Models have tens; each entry
# costs some 0.1 ms.
ENTRIES_MAX = 8192
# The prefix of a file's path in a request.
FILE_PREFIX = "file:"


def parse_override(text: str) -> Config:
    """The configuration in `text`, JSON as lenient as in lenient_json.py. Raises InferenceError INVALID_ARG."""
    if len(text) > CONFIG_BYTES_MAX:
        raise _invalid(f"it has {len(text)} characters, and may have {CONFIG_BYTES_MAX}")
    if not text.lstrip().startswith("{"):
        raise _invalid("expected a JSON object")  # the parser accepts an empty list
    config = new_model_config()
    try:
        document = json.loads(standard_json(text), object_pairs_hook=_without_duplicates)
        json_format.ParseDict(_with_enums(document, CONFIG_DESCRIPTOR), config, descriptor_pool=POOL)
    except (
        json_format.ParseError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError,
    ) as error:  # fmt: skip
        # ParseDict raises ParseError for most invalid values, but Python's own errors for values of unexpected types.
        raise _invalid(str(error)[:COMPLAINT_CHARACTERS_MAX]) from error
    return config


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The members of an object. Raises ValueError for a key that it has twice."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("an object has the same key twice")
    return members


def _with_enums(value: Any, message: Descriptor) -> Any:
    """A document of a message, with the names of enum values in capitals. The schema limits the depth."""
    if not isinstance(value, dict):
        return value
    if message.GetOptions().map_entry:
        field = message.fields_by_name["value"]
        return {key: _with_enum(each, field) for key, each in value.items()}
    fields = message.fields_by_name.values()
    known = {field.name: field for field in fields} | {field.json_name: field for field in fields}
    return {key: _with_enum(each, known[key]) if key in known else each for key, each in value.items()}


def _with_enum(value: Any, field: FieldDescriptor) -> Any:
    if isinstance(value, (dict, list)) and len(value) > ENTRIES_MAX:
        raise ValueError(f"'{field.name}' has {len(value)} entries, and may have {ENTRIES_MAX}")
    if isinstance(value, list):
        return [_with_enum(each, field) for each in value]
    if field.enum_type is not None:
        return value.upper() if isinstance(value, str) else value
    return value if field.message_type is None else _with_enums(value, field.message_type)


def _invalid(complaint: str) -> InferenceError:
    return InferenceError(f"Invalid config override: {complaint}", Code.INVALID_ARG)


def check_files(name: str, config: str, files: Mapping[str, bytes | memoryview]) -> dict[str, bytes | memoryview]:
    """The files that replace a model's folder, by their normalised paths in it. No path leads out of that folder.

    A leading slash means that folder, too. Raises InferenceError INVALID_ARG for an invalid path, or for files without
    a configuration.
    """
    if not config:
        raise _refused(name, "Load parameter 'config' must be specified for model file override")
    if len(files) > OVERRIDE_FILES_MAX:
        raise _refused(name, f"{len(files)} override files are more than {OVERRIDE_FILES_MAX}")
    paths = {key: _path(name, key) for key in files}
    found = set(paths.values())
    for key, path in paths.items():
        folders = list(accumulate(path.split("/")[:-1], "{}/{}".format))
        if not found.isdisjoint(folders):
            raise _refused(name, f"Invalid file parameter '{key}', directory has been created as a file")
    return {paths[key]: content for key, content in files.items()}


def _path(name: str, key: str) -> str:
    """The path of a file in the model's folder. Raises InferenceError INVALID_ARG."""
    path = key.removeprefix(FILE_PREFIX)
    if path == key:
        raise _refused(name, f"override file '{key}' must be named '{FILE_PREFIX}<path>'")
    if not path.isprintable() or "\\" in path:
        raise _refused(name, f"Invalid file parameter {key!a}, its path has invalid characters")
    relative = path.lstrip("/")
    below = path_below("/", relative)
    if below is None or below == "/":
        raise _refused(
            name,
            f"Invalid file parameter '{key}' with normalized path '{normpath(relative)}' must stay within model "
            "directory.",
        )
    return below.removeprefix("/")


def _refused(name: str, reason: str) -> InferenceError:
    return InferenceError(f"failed to load '{name}', {reason}", Code.INVALID_ARG)
