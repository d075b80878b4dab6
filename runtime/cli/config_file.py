# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the options of a configuration file, `--config server.yaml`, into the same values as a command line's.

    http-port: 8001
    model-repository: [models, more_models]
    backend-config: {python: {shm-default-byte-size: 4194304}}

Names are those of the options, with "-" or "_". Every scalar is read as text and converted as on the command line,
because YAML's own conversion would turn `rate-limit: off` into a boolean.
"""

from __future__ import annotations

from pathlib import Path

from pyruntime.runtime.cli.options import OPTIONS, OWN, Kind, Option
from pyruntime.runtime.cli.parse import Values, store, warnings_for
from pyruntime.runtime.settings import SettingsError
from pyruntime.runtime.suggestions import did_you_mean

# A file with every option has a few KiB; a larger one is some other file, given by mistake.
CONFIG_BYTES_MAX = 1 << 20

_NOT_IN_A_FILE = {"help", *(option.name for option in OWN.options)}
_FILE_OPTIONS = {name: option for name, option in OPTIONS.items() if name not in _NOT_IN_A_FILE}


def read_config_file(path: str) -> tuple[Values, list[str]]:
    """The values of the options in the file, by full name, and a warning for each that has no effect.

    Raises SettingsError for a file that cannot be read or is not a YAML mapping, for an unknown key, and for an invalid
    value.
    """
    try:
        with Path(path).open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise SettingsError(f"--config {path!r} cannot be read: {error.strerror}") from error
    if len(text) > CONFIG_BYTES_MAX:
        raise SettingsError(f"--config {path!r} is longer than {CONFIG_BYTES_MAX} bytes")
    return parse_config(text, path)


def parse_config(text: bytes, path: str) -> tuple[Values, list[str]]:
    """Like `read_config_file`, for contents already read; `path` is for the messages."""
    values: Values = {}
    given: dict[str, Option] = {}
    for key, value in _load_mapping(text, path).items():
        name = str(key).replace("_", "-")
        if name not in _FILE_OPTIONS:
            raise SettingsError(f"{path}: unknown key {key!r}{did_you_mean(name, _FILE_OPTIONS)}")
        if name in given:
            raise SettingsError(f"{path}: {name} is there twice")
        given[name] = option = _FILE_OPTIONS[name]
        for item in _occurrences(option, value, where=f"{path}: {key}"):
            store(values, option, item, where=f"{path}: {key}")
    # On a command line, a flag that is false is an absent flag.
    values = {name: value for name, value in values.items() if OPTIONS[name].kind is not Kind.FLAG or value}
    return values, warnings_for(given.values())


def _load_mapping(text: bytes, path: str) -> dict[object, object]:
    import yaml  # only a server with such a file needs it

    try:
        # BaseLoader creates text, lists and mappings only, and no objects of classes that the file names.
        loaded = yaml.load(text, Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SettingsError(f"{path}{line}: not valid YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from error
    if loaded in (None, ""):
        return {}
    if not isinstance(loaded, dict):
        raise SettingsError(f"{path}: needs options as a mapping, such as `http-port: 8000`")
    return loaded


def _occurrences(option: Option, value: object, where: str) -> list[str]:
    """The value as on a command line: one text for each occurrence of the option."""
    if isinstance(value, str):
        return [value]
    if option.kind in (Kind.REPEATABLE, Kind.SETTING) and isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return value
    elif option.kind is Kind.SETTING and isinstance(value, dict):
        return _settings(value, where)
    raise SettingsError(f"{where} needs {_shape(option)}")


def _settings(mapping: dict[object, object], where: str) -> list[str]:
    """`{"python": {"a": "1"}, "b": "2"}` -> `["python,a=1", "b=2"]`."""
    texts = []
    for name, value in mapping.items():
        inner = value.items() if isinstance(value, dict) else [(None, value)]
        for key, text in inner:
            if not isinstance(text, str):
                raise SettingsError(f"{where}: {name} needs a text or <key>: <text>, nothing deeper")
            texts.append(f"{name}={text}" if key is None else f"{name},{key}={text}")
    return texts


def _shape(option: Option) -> str:
    match option.kind:
        case Kind.REPEATABLE:
            return "one text or a list of texts"
        case Kind.SETTING:
            return "a mapping, or a list of <key>=<value>"
        case _:
            return "a single value"
