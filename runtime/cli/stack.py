# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime stack`: prints the stacks of all threads of a model's stubs, including stubs that hang."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from pyruntime.runtime.cli.text import printable
from pyruntime.runtime.observe.stubs import Stub, ask_for_stacks, find_stubs

# The most names that an error message lists.
NAMES_MAX = 20


def run_stack(model: str = "", instance: str = "") -> int:
    """Print the stacks of all stubs of `model`, or of one instance; of all models for "".

    Returns the exit status: 1 if any are missing.
    """
    with ExitStack() as resources:
        found = find_stubs(resources)
        stubs = [stub for stub in found if model in ("", stub.heading.model)]
        chosen = [stub for stub in stubs if instance in ("", stub.heading.instance)]
        if not chosen:
            print(f"Error: {_none_there(model, instance, stubs, found)}", file=sys.stderr)
            return 1
        ask_for_stacks(chosen)
    for stub in sorted(chosen, key=_order):
        _show(stub)
    return int(any(stub.problem for stub in chosen))


def _order(stub: Stub) -> tuple[str, str, str, int]:
    return stub.heading.model, stub.heading.version, stub.heading.instance, stub.pid


def _show(stub: Stub) -> None:
    """Print the stacks of a stub. Escapes control characters, because a model may choose the names in them."""
    _, _, model, version, instance = stub.heading
    print(f"{printable(instance)} of {printable(model)} version {printable(version)}, process {stub.pid}\n")
    if stub.by_signal:
        print("It did not let another thread run Python: a call into C probably keeps the interpreter's lock.\n")
    for line in stub.stacks.splitlines():
        print(printable(line))
    if stub.problem:
        print(f"No stacks, or not all of them: the process {stub.problem}.")
    print()


def _none_there(model: str, instance: str, stubs: Sequence[Stub], found: Sequence[Stub]) -> str:
    """The error message for a model or an instance that has no stub.

    `stubs` are those of the model, and `found` are those of all models; the message suggests their names.
    """
    named = f" '{model}'" if model else ""
    if stubs:
        sentence = f"no stub{' of model' if model else ''}{named} is instance '{instance}'"
        names = {stub.heading.instance for stub in stubs}
    else:
        sentence = f"no stub of a model{named} runs on this machine as user {os.geteuid()}"
        names = {stub.heading.model for stub in found}
    if not names:
        return f"{sentence}, nor of any other" if model else sentence
    return f"{sentence}; there are: {', '.join(printable(name) for name in sorted(names)[:NAMES_MAX])}"
