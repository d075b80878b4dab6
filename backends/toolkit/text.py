# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of models that generate text: those of Triton's vLLM backend.

An engine reports its progress as outputs with the fields of vLLM's RequestOutput: `prompt`, `prompt_token_ids`,
`finished` and `outputs`, one for each completion, each with `text`, `token_ids`, `finish_reason`, `cumulative_logprob`
and `logprobs`. Texts and lists are cumulative. A response of a stream has what came since the response before.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.utils.errors import ConfigError

_INPUTS = (
    ("text_input", "TYPE_STRING", [1]),
    ("image", "TYPE_STRING", [-1]),
    ("stream", "TYPE_BOOL", [1]),
    ("sampling_parameters", "TYPE_STRING", [1]),
    ("exclude_input_in_output", "TYPE_BOOL", [1]),
    ("return_finish_reason", "TYPE_BOOL", [1]),
    ("return_cumulative_logprob", "TYPE_BOOL", [1]),
    ("return_logprobs", "TYPE_BOOL", [1]),
    ("return_num_input_tokens", "TYPE_BOOL", [1]),
    ("return_num_output_tokens", "TYPE_BOOL", [1]),
)
_OUTPUTS = (
    ("text_output", "TYPE_STRING", [-1]),
    ("finish_reason", "TYPE_STRING", [-1]),
    ("cumulative_logprob", "TYPE_FP32", [-1]),
    ("logprobs", "TYPE_STRING", [-1]),
    ("num_input_tokens", "TYPE_UINT32", [1]),
    ("num_output_tokens", "TYPE_UINT32", [-1]),
)
# Parameters of a request that are meant for the server.
_SERVER_PARAMETERS = frozenset(
    ("id", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "binary_data_output")
)


def complete_text_config(config: pb_utils.ModelConfig) -> None:
    """Add the inputs and outputs that are missing, and the decoupled policy. Raises ValueError as Triton's backend."""
    configured = config.as_dict()
    for tensors, noun, add in ((_INPUTS, "input", config.add_input), (_OUTPUTS, "output", config.add_output)):
        names = {tensor["name"] for tensor in configured.get(noun, ())}
        for name, datatype, dims in tensors:
            if name in names:
                continue
            tensor: Dict[str, Any] = {"name": name, "data_type": datatype, "dims": dims}
            if noun == "input" and name != "text_input":
                tensor["optional"] = True
            add(tensor)
    config.set_model_transaction_policy({"decoupled": True})
    config.set_max_batch_size(0)


def check_text_config(config: Mapping[str, Any], backend: str) -> None:
    """Raise ConfigError unless the model is decoupled and the server leaves batches to the engine."""
    if not config.get("model_transaction_policy", {}).get("decoupled") or config.get("max_batch_size", 0):
        raise ConfigError(
            f"model '{config.get('name', '')}': the backend {backend} answers token by token and makes its own "
            "batches, so config.pbtxt must have model_transaction_policy { decoupled: true } and max_batch_size: 0"
        )


@dataclass(frozen=True)
class TextRequest:
    """A request. `images` are base64 texts, `parameters` those of sampling, `returns` the wanted further outputs."""

    prompt: str
    images: Tuple[str, ...]
    stream: bool
    prepends_prompt: bool
    parameters: Mapping[str, Any]
    returns: FrozenSet[str]


def read_text_request(request: pb_utils.InferenceRequest) -> TextRequest:
    """Read the inputs, or the parameters if there is no input `sampling_parameters`. Raises ValueError."""
    inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
    stream = _flag(inputs, "stream") or False
    excluded = _flag(inputs, "exclude_input_in_output")
    prepends_prompt = not stream if excluded is None else not excluded
    if stream and prepends_prompt:
        raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
    returns = frozenset(name for name, _, _ in _OUTPUTS if _flag(inputs, f"return_{name}"))
    text = _text(inputs, "sampling_parameters")
    parameters = _of_request(request.parameters()) if text is None else _object(text)
    if "cumulative_logprob" in returns:
        # vLLM computes it only with this parameter; 0 is the chosen token alone.
        parameters.setdefault("logprobs", 0)
    images = tuple(_decoded(each, "image") for each in inputs["image"].ravel()) if "image" in inputs else ()
    return TextRequest(_text(inputs, "text_input") or "", images, stream, prepends_prompt, parameters, returns)


class TextResponses:
    """Makes the responses to one request from the outputs of the engine, in their order."""

    def __init__(self, request: TextRequest) -> None:
        self._request = request
        # Of each completion, the characters, tokens and log probabilities in earlier responses.
        self._sent: List[Tuple[int, int, int]] = []

    def make(self, output: Any) -> pb_utils.InferenceResponse:
        """The response with all that is new in `output`."""
        completions = output.outputs
        first = not self._sent
        before = self._sent or [(0, 0, 0)] * len(completions)
        self._sent = [(len(each.text), len(each.token_ids), len(each.logprobs or ())) for each in completions]
        prompt = output.prompt or self._request.prompt if first and self._request.prepends_prompt else ""
        tensors = [
            _texts("text_output", [prompt + each.text[sent:] for each, (sent, _, _) in zip(completions, before)])
        ]
        returns = self._request.returns
        if "finish_reason" in returns:
            tensors.append(_texts("finish_reason", [str(each.finish_reason) for each in completions]))
        if "cumulative_logprob" in returns:
            sums = [np.nan if each.cumulative_logprob is None else each.cumulative_logprob for each in completions]
            tensors.append(pb_utils.Tensor("cumulative_logprob", np.array(sums, np.float32)))
        if "logprobs" in returns:
            texts = [_logprobs_text(each.logprobs, sent) for each, (_, _, sent) in zip(completions, before)]
            tensors.append(_texts("logprobs", texts))
        if "num_input_tokens" in returns:
            tensors.append(pb_utils.Tensor("num_input_tokens", np.array([len(output.prompt_token_ids)], np.uint32)))
        if "num_output_tokens" in returns:
            counts = [len(each.token_ids) - sent for each, (_, sent, _) in zip(completions, before)]
            tensors.append(pb_utils.Tensor("num_output_tokens", np.array(counts, np.uint32)))
        return pb_utils.InferenceResponse(tensors)


def _flag(inputs: Mapping[str, Any], name: str) -> Optional[bool]:
    return bool(inputs[name].ravel()[0]) if name in inputs else None


def _text(inputs: Mapping[str, Any], name: str) -> Optional[str]:
    return _decoded(inputs[name].ravel()[0], name) if name in inputs else None


def _decoded(value: Any, name: str) -> str:
    try:
        text: str = value.decode()
        return text
    except UnicodeDecodeError:
        raise ValueError(f"input '{name}' is not valid UTF-8") from None


def _object(text: str) -> Dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as exc:
        raise ValueError(f"input 'sampling_parameters' is not valid JSON: {exc}") from None
    if not isinstance(found, dict):
        raise ValueError("input 'sampling_parameters' must be a JSON object, such as {\"temperature\": 0.5}")
    return found


def _of_request(text: str) -> Dict[str, Any]:
    """The parameters of a request that are not the server's; names of forwarded headers mostly have a hyphen."""
    parameters = json.loads(text) if text else {}
    return {name: value for name, value in parameters.items() if name.isidentifier() and name not in _SERVER_PARAMETERS}


def _texts(name: str, texts: List[str]) -> pb_utils.Tensor:
    return pb_utils.Tensor(name, np.array([each.encode() for each in texts], np.object_))


def _logprobs_text(logprobs: Any, sent: int) -> str:
    if logprobs is None:
        return "null"
    fields = ("logprob", "rank", "decoded_token")
    return json.dumps(
        [
            {token: {name: getattr(value, name) for name in fields} for token, value in position.items()}
            for position in logprobs[sent:]
        ]
    )
