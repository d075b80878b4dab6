# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses a command line into the values of its options, by the rules of getopt_long. (pure)

argument   := "--" name | "--" name "=" value | "--" name value | "-m" value | repository
name       := the name of an option, or a prefix of exactly one name
repository := a folder, as with --model-repository, for which -m is short

`tritonserver` has the same rules, so its command lines work here unchanged: a boolean needs a value, and the argument
of an option may begin with "-". `resolve.py` interprets the values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from pyruntime.runtime.cli.options import OPTIONS, Kind, Option, Status
from pyruntime.runtime.settings import SettingsError
from pyruntime.runtime.suggestions import did_you_mean

Value = str | int | bool | float | list[str]
Values = dict[str, Value]

# The largest int64, because that is the type of integers in Triton.
INT_MAX = (1 << 63) - 1

# The option that a word without a name stands for, and its short form.
REPOSITORY = "model-repository"
REPOSITORY_FLAG = "-m"

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_LISTS = (Kind.REPEATABLE, Kind.SETTING)


def parse_arguments(arguments: Sequence[str]) -> tuple[Values, list[str]]:
    """The values of the options in `arguments`, by full name, and one warning for each that has no effect.

    Raises SettingsError for a word that is not an option, for an unknown or ambiguous name, and for a value that is
    missing, not allowed, or of the wrong kind.
    """
    values: Values = {}
    given: list[Option] = []
    words = iter(arguments)
    for word in words:
        name, equals, text = _split(word)
        option = find_option(name)
        given.append(option)
        if option.kind is Kind.FLAG:
            if equals:
                raise SettingsError(f"--{option.name} takes no argument, and was given {text!r}")
            values[option.name] = True
            continue
        if not equals:
            following = next(words, None)
            if following is None:
                raise SettingsError(f"--{option.name} needs an argument: {_expectation(option.kind)}")
            text = following
        store(values, option, text, f"--{option.name}")
    return values, warnings_for(given)


def _split(word: str) -> tuple[str, str, str]:
    """The name of an option, "=" if its argument is in the same word, and that. Raises SettingsError."""
    if word.startswith("--") and word != "--":
        name, equals, text = word[2:].partition("=")
        return name, equals, text
    if word.startswith(REPOSITORY_FLAG):
        text = word.removeprefix(REPOSITORY_FLAG)
        return REPOSITORY, "=" if text else "", text.removeprefix("=")
    if word.startswith("-") or word.partition("=")[0] in OPTIONS:
        raise SettingsError(f"unexpected argument {word!r}; options are written like --http-port=8000")
    return REPOSITORY, "=", word


def find_option(name: str) -> Option:
    """The option `name`, or the only option with this prefix. Raises SettingsError if there is not exactly one."""
    if name in OPTIONS:
        return OPTIONS[name]
    matches = [option for option in OPTIONS.values() if name and option.name.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise SettingsError(f"--{name} is short for several: {', '.join(f'--{match.name}' for match in matches)}")
    raise SettingsError(f"unknown option {f'--{name}'!r}{did_you_mean(name, OPTIONS, prefix='--')}")


def store(values: Values, option: Option, text: str, where: str) -> None:
    """Add one occurrence of `option` to `values`. Raises SettingsError, beginning with `where`, if it is malformed."""
    name = option.alias_of or option.name
    if option.kind not in _LISTS:
        values[name] = convert(option.kind, text, where)
        return
    if option.kind is Kind.SETTING and "=" not in text:
        raise SettingsError(f"{where} needs {_expectation(option.kind)}, not {text!r}")
    earlier = values.setdefault(name, [])
    assert isinstance(earlier, list)
    earlier.append(text)


def convert(kind: Kind, text: str, where: str) -> str | int | bool | float:
    """Convert `text` to a value of `kind`. Raises SettingsError, beginning with `where`, if it is not one."""
    try:
        match kind:
            case Kind.BOOL | Kind.FLAG:
                return _BOOLEANS[text.lower()]
            case Kind.INT:
                return _integer(text)
            case Kind.FLOAT:
                return float(text)
            case _:
                return text
    except (KeyError, ValueError):
        raise SettingsError(f"{where} needs {_expectation(kind)}, not {text!r}") from None


def warnings_for(options: Iterable[Option]) -> list[str]:
    """One line for each of `options` that has no effect, without duplicates."""
    lines = {}
    for option in options:
        if option.status is Status.LATER:
            lines[option.name] = f"--{option.name} is accepted but has no effect yet: {option.note}"
        elif option.status is Status.NO_OP:
            lines[option.name] = f"--{option.name} is accepted and has no effect: {option.note}"
    return list(lines.values())


def merge(base: Mapping[str, Value], over: Mapping[str, Value]) -> Values:
    """Merge both; `over` wins. Lists of `<key>=<value>` are joined, so that `over` wins for each key."""
    merged = {**base, **over}
    for name in base.keys() & over.keys():
        first, last = base[name], over[name]
        if OPTIONS[name].kind is Kind.SETTING and isinstance(first, list) and isinstance(last, list):
            merged[name] = first + last
    return merged


def _integer(text: str) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or abs(value) > INT_MAX:
        raise ValueError(text)
    return value


def _expectation(kind: Kind) -> str:
    match kind:
        case Kind.BOOL | Kind.FLAG:
            return "true, false, 1 or 0"
        case Kind.INT:
            return "an integer"
        case Kind.FLOAT:
            return "a number"
        case Kind.SETTING:
            return "<key>=<value>, with a name and a comma before it where there are several"
        case _:
            return "a text"
