# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`pyruntime models`, `load` and `unload`: lists, loads and unloads the models of a server."""

from __future__ import annotations

from collections.abc import Sequence

from pyruntime.runtime.cli.commands.client import Refused, ServerClient, TensorMetadata, control_path, model_path
from pyruntime.runtime.cli.commands.show import print_json, progress, show_table

_HEADINGS = ("Model", "Version", "State", "Inputs", "Outputs", "Reason")


def run_models(client: ServerClient, as_json: bool) -> int:
    """Print all models of the repositories. Raises CommandError."""
    _show(client, client.index(), as_json)
    return 0


def run_load(client: ServerClient, model: str, as_json: bool) -> int:
    """Load or update a model, and print its state. Raises CommandError."""
    with progress(f"{model} is being loaded"), client.about(model):
        client.post(control_path(model, "load"), {})
    _show(client, _rows_of(client, model), as_json)
    return 0


def run_unload(client: ServerClient, model: str, as_json: bool) -> int:
    """Unload a model, and print its state. Raises CommandError."""
    rows = _rows_of(client, model)
    if not rows:
        # The server reports success for a model that does not exist.
        with client.about(model):
            raise Refused(f"there is no model '{model}'")
    client.post(control_path(model, "unload"), {})
    _show(client, _rows_of(client, model), as_json)
    return 0


def _rows_of(client: ServerClient, model: str) -> list[dict[str, str]]:
    return [row for row in client.index() if row["name"] == model]


def _show(client: ServerClient, rows: Sequence[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    shown = []
    for row in rows:
        inputs, outputs = _tensors(client, row)
        version, state = row.get("version", ""), row.get("state", "not loaded")
        shown.append((row["name"], version, state, inputs, outputs, row.get("reason", "")))
    used = [column for column, heading in enumerate(_HEADINGS) if heading != "Reason" or any(row[-1] for row in shown)]
    show_table([_HEADINGS[column] for column in used], [[row[column] for column in used] for row in shown])


def _tensors(client: ServerClient, row: dict[str, str]) -> tuple[str, str]:
    """The inputs and outputs of a version that is ready, one per line."""
    if row.get("state") != "READY":
        return "", ""
    try:
        metadata = client.metadata(f"{model_path(row['name'])}/versions/{row['version']}")
    except Refused:  # it was unloaded meanwhile
        return "", ""
    return _signature(metadata["inputs"]), _signature(metadata["outputs"])


def _signature(tensors: Sequence[TensorMetadata]) -> str:
    return "\n".join(f"{each['name']} {each['datatype']}{list(each['shape'])}" for each in tensors)
