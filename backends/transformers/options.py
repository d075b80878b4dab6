# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads model.json of a transformers model, with vLLM's names. It may be missing: then all has its default."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields
from typing import Any

from pyruntime.utils.errors import ConfigError

FILENAME = "model.json"
# One row more costs memory for `max_model_len` tokens, but hardly any time of a GPU.
MAX_NUM_SEQS = 16
# The time in which a prompt may delay the next token of others, in tokens.
MAX_NUM_BATCHED_TOKENS = 2048
MAX_NUM_QUEUED_REQS = 1024


@dataclass(frozen=True)
class Options:
    """`model` is a folder, or an id of a model hub. With `max_model_len` None the model's own length is the limit."""

    model: str
    is_local: bool
    revision: str | None = None
    dtype: str = "auto"
    trust_remote_code: bool = False
    max_model_len: int | None = None
    max_num_seqs: int = MAX_NUM_SEQS
    max_num_batched_tokens: int = MAX_NUM_BATCHED_TOKENS
    max_num_queued_reqs: int = MAX_NUM_QUEUED_REQS


_KNOWN = {field.name: field.type for field in fields(Options) if field.name != "is_local"}
_TYPES: dict[str, type] = {"str": str, "str | None": str, "bool": bool, "int": int, "int | None": int}


def read_options(name: str, version_dir: str) -> Options:
    """The options of the model `name`. The folder of the version is the model, if no other is named.

    Raises ConfigError.
    """
    found = _read(name, os.path.join(version_dir, FILENAME))
    for option, value in found.items():
        if option not in _KNOWN:
            raise ConfigError(
                f"model '{name}' has the unknown option '{option}' in {FILENAME}, known are: {', '.join(_KNOWN)}"
            )
        kind = _TYPES[str(_KNOWN[option])]
        if type(value) is not kind or (isinstance(value, int) and kind is int and value < 1):
            expected = {str: "a text", bool: "true or false", int: "an integer of at least 1"}[kind]
            raise ConfigError(f"model '{name}' has {option} {value!r} in {FILENAME}, expected {expected}")
    model = found.pop("model", ".")
    folder = os.path.normpath(os.path.join(version_dir, model))
    is_local = os.path.isdir(folder)
    return Options(folder if is_local else model, is_local, **found)


def _read(name: str, path: str) -> dict[str, Any]:
    try:
        with open(path) as file:
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as exc:
        raise ConfigError(f"model '{name}': '{path}' is not valid JSON: {exc}") from exc
    if not isinstance(found, dict):
        raise ConfigError(f"model '{name}': '{path}' must be a JSON object")
    return found
