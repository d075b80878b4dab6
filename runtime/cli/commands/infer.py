# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime infer`: sends one request to a model, and prints its responses."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence

import numpy as np

from pyruntime.runtime.cli.commands.asked import Asked, latency_rows
from pyruntime.runtime.cli.commands.client import Refused, ServerClient, WrongUsage
from pyruntime.runtime.cli.commands.inference import Response, decode_response, encode_generate, encode_request
from pyruntime.runtime.cli.commands.inputs import read_inputs
from pyruntime.runtime.cli.commands.show import print_json, show_table
from pyruntime.runtime.cli.commands.tensors import Array, TensorError, TensorSpec, texts
from pyruntime.runtime.cli.text import printable, printable_lines
from pyruntime.runtime.ensembles.step_times import STEP_TIMES, decode_step_times
from pyruntime.runtime.json_types import JsonObject, JsonValue
from pyruntime.runtime.suggestions import did_you_mean

# Of a tensor with more elements only the corners are shown; --json shows all.
ELEMENTS_SHOWN_MAX = 100
# The most characters that are shown of one BYTES element.
TEXT_SHOWN_MAX = 1000

# The width of the longest bar of a step's time, in characters.
BAR_WIDTH = 20

# The members of an event of a stream that are not outputs.
_ABOUT = ("model_name", "model_version", "id")
_ONLY_STREAMS = "decoupled transaction policy"


def run_infer(client: ServerClient, asked: Asked, stream: bool, timing: bool, as_json: bool) -> int:
    """Send the requests and print the responses to the last one. Raises CommandError."""
    with client.about(asked.model):
        metadata = client.metadata(asked.path)
    specs = {spec.name: spec for spec in map(TensorSpec.parse, metadata["inputs"])}
    _check_outputs(asked.outputs, [spec["name"] for spec in metadata["outputs"]])
    arrays = read_inputs(asked.inputs, specs)
    if timing and (stream or metadata["platform"] != "ensemble"):
        raise WrongUsage("--timing is for ensembles, without --stream: it shows the time of each step")
    if stream:
        if asked.repeat > 1:
            raise WrongUsage("--repeat is for requests with one response, without --stream")
        return _stream(client, asked, arrays, as_json)
    latencies_s: list[float] = []
    begun = time.monotonic()
    for parameters in asked.each():
        sent = time.monotonic()
        response = _infer(client, asked, arrays, specs, {**parameters, STEP_TIMES: True} if timing else parameters)
        latencies_s.append(time.monotonic() - sent)
    headings, rows = latency_rows(latencies_s, time.monotonic() - begun)
    repeated = asked.repeat > 1
    if as_json:
        more: JsonObject = {"step_times": json.loads(_step_times_of(response))} if timing else {}
        if repeated:
            more["repeated"] = dict(zip(headings, map(float, rows[0]), strict=True))
        print_json(response.to_json() | more)
        return 0
    _show_response(response)
    if timing:
        show_table(("Step", "Model", "Start (ms)", "Waited (ms)", "Ran (ms)", "Time"), timing_rows(response))
    if repeated:
        show_table(headings, rows, headings)
    return 0


def _show_response(response: Response) -> None:
    rows = [
        (spec.name, spec.datatype, str(list(spec.shape)), shown(array, spec.datatype))
        for spec, array in response.outputs
    ]
    show_table(("Output", "Datatype", "Shape", "Value"), rows)


def _step_times_of(response: Response) -> str:
    text = response.parameters.get(STEP_TIMES)
    if not isinstance(text, str):
        raise Refused("the response has no times of steps: a response cache answers without them, as other servers do")
    return text


def timing_rows(response: Response) -> list[tuple[str, ...]]:
    """A row for each step, with a bar for its time: dots while it waits, and then blocks. Raises Refused."""
    try:
        steps = decode_step_times(_step_times_of(response))
    except ValueError as exc:
        raise Refused(str(exc)) from exc
    end_us = max((step.end_us for step in steps), default=0)
    unit_us = max(1, -(-end_us // BAR_WIDTH))
    rows = []
    for step in sorted(steps, key=lambda step: (step.start_us, step.step)):
        start, execute, end = (us // unit_us for us in (step.start_us, step.execute_us, step.end_us))
        bar = " " * start + "." * (execute - start) + "#" * max(1, end - execute)
        times = step.start_us, step.execute_us - step.start_us, step.end_us - step.execute_us
        rows.append((str(step.step), step.model, *(f"{us / 1000:.3f}" for us in times), bar))
    return rows


def _check_outputs(wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"; its outputs are {', '.join(known)}"
            raise WrongUsage(f"the model has no output '{name}'{hint}")


def _infer(
    client: ServerClient,
    asked: Asked,
    arrays: Mapping[str, Array],
    specs: Mapping[str, TensorSpec],
    parameters: Mapping[str, JsonValue],
) -> Response:
    body, headers = encode_request(arrays, specs, asked.outputs, parameters)
    try:
        answer = client.request("POST", f"{asked.path}/infer", body, headers)
    except Refused as exc:
        hint = "; --stream is for such models" if _ONLY_STREAMS in str(exc) else ""
        raise Refused(f"{exc}{hint}") from exc
    try:
        return decode_response(*answer)
    except (ValueError, KeyError, TypeError) as exc:
        raise Refused(f"{client.url} answers with what is no response to an inference: {exc}") from exc


def _stream(client: ServerClient, asked: Asked, arrays: Mapping[str, Array], as_json: bool) -> int:
    """Print each event as it arrives. Raises CommandError for an event that is an error."""
    try:
        document = encode_generate(arrays)
    except TensorError as exc:
        raise WrongUsage(str(exc)) from exc
    (parameters,) = asked.each()
    if parameters:
        document["parameters"] = parameters
    for event in client.stream(f"{asked.path}/generate_stream", document):
        if not isinstance(event, dict):
            raise Refused(f"{client.url} sends an event that is no object")
        if "error" in event:
            raise Refused(str(event["error"]))
        chosen: JsonObject = {
            name: value for name, value in event.items() if not asked.outputs or name in asked.outputs or name in _ABOUT
        }
        if as_json:
            print_json(chosen)
        else:
            _show_event(chosen)
    return 0


def _show_event(event: Mapping[str, JsonValue]) -> None:
    values = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in event.items() if name not in _ABOUT
    ]
    print(printable("  ".join(values)), flush=True)


def shown(array: Array, datatype: str) -> str:
    """A tensor as text for a terminal."""
    if datatype != "BYTES":
        return np.array2string(array, threshold=ELEMENTS_SHOWN_MAX, separator=", ")
    if array.size == 1:
        return _shown_text(texts(array)[0])
    lines = [_shown_text(text) for text in texts(array.ravel()[:ELEMENTS_SHOWN_MAX])]
    more = array.size - len(lines)
    return "\n".join(lines + ([f"... and {more} more"] if more else []))


def _shown_text(text: str) -> str:
    cut = text if len(text) <= TEXT_SHOWN_MAX else f"{text[:TEXT_SHOWN_MAX]}..."
    return printable_lines(cut)
