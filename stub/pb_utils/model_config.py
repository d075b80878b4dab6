# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""`ModelConfig`, the configuration that `auto_complete_config` receives, completes and returns. (pure)

A model may set what its config.pbtxt omits, and repeat what it contains, but not contradict it. The messages are
Triton's.
"""

from __future__ import annotations

import json
from typing import Any, Dict, cast

_INPUT_PROPERTIES = ("name", "data_type", "dims", "optional")
_OUTPUT_PROPERTIES = ("name", "data_type", "dims")
_OTHER_SCHEDULERS = ("sequence_batching", "ensemble_scheduling")


class ModelConfig:
    """A model's configuration while it is completed. Every method that refuses raises ValueError."""

    def __init__(self, model_config: str) -> None:
        """Takes the configuration as JSON, as in `args["model_config"]`."""
        self._model_config = cast(Dict[str, Any], json.loads(model_config))

    def as_dict(self) -> Dict[str, Any]:
        """The configuration itself, not a copy. Do not change it."""
        return self._model_config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Set the largest batch; 0 means no batching. Refuses a value below that of the configuration."""
        configured = self._model_config.get("max_batch_size", 0)
        if configured > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {configured}, but in {self._function()} "
                f"specified max_batch_size {max_batch_size}"
            )
        self._model_config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Enable the dynamic batcher with its defaults. Refuses if another scheduler is configured."""
        for scheduler in _OTHER_SCHEDULERS:
            if scheduler in self._model_config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{scheduler}', but {self._function()} "
                    "tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._model_config.setdefault("dynamic_batching", {})

    def add_input(self, input: Dict[str, Any]) -> None:
        """Add or complete an input: `name`, `data_type` (`TYPE_FP32`), `dims` without the batch, maybe `optional`."""
        self._add("input", input, _INPUT_PROPERTIES)

    def add_output(self, output: Dict[str, Any]) -> None:
        """Add or complete an output: `name`, `data_type` (`TYPE_FP32`), `dims` without the batch."""
        self._add("output", output, _OUTPUT_PROPERTIES)

    def set_model_transaction_policy(self, transaction_policy_dict: Dict[str, Any]) -> None:
        """Set whether the model is decoupled, by `{"decoupled": bool}`. Refuses to change a configured value."""
        if set(transaction_policy_dict) - {"decoupled"}:
            raise ValueError(
                f"model transaction property in {self._function()} contains property other than 'decoupled'."
            )
        policy = self._model_config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        decoupled = transaction_policy_dict["decoupled"]
        if policy.setdefault("decoupled", decoupled) != decoupled:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name()}', "
                f"which is already set to '{policy['decoupled']}'."
            )

    def _name(self) -> str:
        return cast(str, self._model_config.get("name", ""))

    def _function(self) -> str:
        return f"auto-complete-config function for model '{self._name()}'"

    def _add(self, kind: str, tensor: Dict[str, Any], properties: tuple[str, ...]) -> None:
        self._check_properties(kind, tensor, properties)
        configured = self._model_config.setdefault(kind, [])
        for entry in configured:
            if entry["name"] == tensor["name"]:
                self._merge(kind, entry, tensor)
                return
        configured.append(dict(tensor))

    def _check_properties(self, kind: str, tensor: Dict[str, Any], properties: tuple[str, ...]) -> None:
        if "name" not in tensor:
            raise ValueError(f"{kind} in {self._function()} is missing 'name' property.")
        subject = f"{kind} '{tensor['name']}' in {self._function()}"
        if set(tensor).difference(properties):
            *first, last = (f"'{each}'" for each in properties)
            raise ValueError(f"{subject} contains property other than {', '.join(first)} and {last}.")
        for required in ("data_type", "dims"):
            if required not in tensor:
                raise ValueError(f"{subject} is missing '{required}' property.")
        dims = tensor["dims"]
        if isinstance(dims, int):
            raise ValueError(f"{subject} has {dims} as 'dims', which must be a list: [{dims}].")

    def _merge(self, kind: str, entry: Dict[str, Any], tensor: Dict[str, Any]) -> None:
        """Complete `entry` from `tensor`, entirely or not at all."""
        data_type = entry.get("data_type", "TYPE_INVALID")
        if data_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name()}', configuration expects datatype {data_type} "
                f"for {kind} '{tensor['name']}', model provides {tensor['data_type']}"
            )
        dims = entry.get("dims")
        if dims and list(dims) != list(tensor["dims"]):
            raise self._contradiction(tensor, "dims", dims)
        optional = entry.get("optional", False)
        if tensor.get("optional", optional) != optional:
            raise self._contradiction(tensor, "optional", optional)
        entry.update(tensor)

    def _contradiction(self, tensor: Dict[str, Any], what: str, configured: object) -> ValueError:
        return ValueError(
            f"model '{self._name()}', tensor '{tensor['name']}': the model expects {what} {tensor[what]} "
            f"but the model configuration specifies {what} {configured}"
        )
