# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The contents of a scenario's requests: one set of inputs that is repeated, or many that differ.

Inputs are pairs of a name and its values, all numbers or all texts, in one dimension.
"""

import json

# The requests of a scenario that varies them. It is a prime number, so that steps through the sizes reach each once.
VARIED = 1999
STEP = 977
NUMBERS = 16
LETTERS = "the quick brown fox jumps over the lazy dog "


def requests_of(sc):
    """The inputs of each request, in the order in which they are sent: one of them if the scenario repeats it."""
    if not sc.vary:
        return [inputs_of(sc, 0, sc.bytes)]
    return [inputs_of(sc, i, size) for i, size in enumerate(varied_sizes())]


def varied_sizes():
    """Sizes from 1 to VARIED, each once, so that neighbours differ much."""
    return [i * STEP % VARIED + 1 for i in range(VARIED)]


def inputs_of(sc, turn, size):
    """The inputs of one request; a varied size is that in elements or letters, a fixed one that in bytes."""
    if sc.model == "texts":
        return [("INPUT0", [text_of(turn, size)])]
    if sc.bytes or sc.model.endswith("identity"):
        return [("INPUT0", numbers_of(size if sc.vary else max(1, size // 4)))]
    return [("INPUT0", [float(i + turn) for i in range(NUMBERS)]), ("INPUT1", [1.0] * NUMBERS)]


def numbers_of(count):
    """Numbers that FP32 holds exactly, with digits behind the point."""
    return [i % 1000 / 8 for i in range(count)]


def text_of(turn, size):
    """A text of so many letters, each of one byte; another turn begins with another letter."""
    begin = turn % len(LETTERS)
    return (LETTERS * (size // len(LETTERS) + 2))[begin : begin + size]


def write_input_data(sc, path):
    """The requests as perf_analyzer's --input-data, which grpc_load.py reads as well."""
    requests = [
        {name: {"content": values, "shape": [len(values)]} for name, values in inputs} for inputs in requests_of(sc)
    ]
    with open(path, "w") as f:
        json.dump({"data": requests}, f)
