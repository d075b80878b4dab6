# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""What `pyruntime infer` asks for besides tensors: a version, parameters, a place in a sequence, repetitions. (pure)"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pyruntime.runtime.cli.commands.client import WrongUsage, model_path
from pyruntime.runtime.json_types import JsonObject, JsonValue


@dataclass(frozen=True)
class Asked:
    """The options of the command that say which requests are sent to `model`."""

    model: str
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    version: str = ""
    parameters: JsonObject = field(default_factory=dict)
    sequence: str = ""
    starts: bool = False
    ends: bool = False
    repeat: int = 1

    def __post_init__(self) -> None:
        if self.version and not self.version.isdecimal():
            raise WrongUsage(f"--model-version must be a number, not {self.version!r}")
        if (self.starts or self.ends) and not self.sequence:
            raise WrongUsage("--start and --end are for requests of a sequence: --sequence names it")

    @property
    def path(self) -> str:
        """The path of the model, or of its version."""
        return model_path(self.model) + (f"/versions/{self.version}" if self.version else "")

    def each(self) -> Iterator[JsonObject]:
        """The parameters of each request: a sequence starts with the first, and ends with the last."""
        for number in range(self.repeat):
            place: JsonObject = {}
            if self.sequence:
                place = {
                    "sequence_id": int(self.sequence) if self.sequence.isdecimal() else self.sequence,
                    "sequence_start": self.starts and number == 0,
                    "sequence_end": self.ends and number == self.repeat - 1,
                }
            yield {**self.parameters, **place}


def read_parameters(texts: Iterable[str]) -> JsonObject:
    """The parameters in `<name>=<value>`: numbers, true and false, and else texts. Raises WrongUsage."""
    parameters: JsonObject = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise WrongUsage(f"--parameter needs <name>=<value>, not {text!r}")
        if name in parameters:
            raise WrongUsage(f"--parameter {name} is there twice")
        parameters[name] = _scalar(value)
    return parameters


def _scalar(text: str) -> JsonValue:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float | str) else text


def latency_rows(latencies_s: Sequence[float], elapsed_s: float) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings and the row about so many requests, one after the other."""
    ordered = sorted(latencies_s)
    mean_s = sum(ordered) / len(ordered)
    times = (mean_s, ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100], ordered[-1])
    headings = ("Requests", "Per second", "Mean (ms)", "p50 (ms)", "p99 (ms)", "Max (ms)")
    rate = len(ordered) / elapsed_s
    return headings, [(str(len(ordered)), f"{rate:.1f}", *(f"{time_s * 1000:.3f}" for time_s in times))]
