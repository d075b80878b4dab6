# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "transformers" in a server: a tiny random language model, with continuous batching."""

import functools
import json
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

pytest.importorskip("transformers", reason="transformers is not installed (pip install transformers)")

from .. import tiny_models
from .harness.models import write_model

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

# With several threads a small model on busy cores waits for them.
BACKEND = 'backend: "transformers"\nparameters { key: "INTRA_OP_THREAD_COUNT" value { string_value: "1" } }\n'
PROMPTS = ["hello", "a prompt that is much longer", "x", "w\u00f6rld"]
FULL = 10  # tokens of an answer
READY_S = 600.0


@pytest.fixture(scope="module")
def server(serving, wait_until, tmp_path_factory):
    repository = tmp_path_factory.mktemp("transformers")
    version = write_model(repository, "llm", None, BACKEND) / "1"
    (version / "model.json").write_text(json.dumps({"max_num_seqs": 3, "max_num_batched_tokens": 8}))
    tiny_models.language_model(version)
    with serving(repository, ready=False) as server:
        wait_until(lambda: server.process.poll() is not None or server.is_ready(), READY_S)
        server.weights = version / "model.safetensors"
        yield server


@pytest.fixture(scope="module")
def generated():
    """`generated(prompt, count)`: the text of model.generate."""
    model, tokenizer = tiny_models.language_model(), tiny_models.tokenizer()

    @functools.cache
    def generate(prompt, count=FULL):
        tokens = tokenizer(prompt, return_tensors="pt").input_ids
        found = model.generate(tokens, max_new_tokens=count, do_sample=False)
        return tokenizer.decode(found[0, tokens.shape[1] :], skip_special_tokens=True)

    return generate


def greedy(server, prompt, stream=True, count=FULL, **more):
    return server.stream("llm", text_input=prompt, stream=stream, max_tokens=count, temperature=0, **more)


def text_of(events):
    return "".join(each["text_output"] for each in events)


def test_weights_do_not_change_with_their_file(server, generated):
    """The model computes, here and in all tests that follow, as it was loaded."""
    os.truncate(server.weights, 0)
    assert text_of(greedy(server, PROMPTS[0])) == generated(PROMPTS[0])


def test_requests_at_the_same_time(server, generated):
    """Each of several requests of different lengths has the text of model.generate, streamed or whole."""
    wanted = [(prompt, FULL + 5 * index) for index, prompt in enumerate(PROMPTS)]
    with ThreadPoolExecutor(2 * len(wanted)) as pool:
        streams = [pool.submit(greedy, server, prompt, True, count) for prompt, count in wanted]
        wholes = [pool.submit(greedy, server, prompt, False, count) for prompt, count in wanted]
        for (prompt, count), stream, whole in zip(wanted, streams, wholes, strict=True):
            assert text_of(stream.result()) == generated(prompt, count)
            assert [each["text_output"] for each in whole.result()] == [prompt + generated(prompt, count)]


def test_a_request_joins_and_another_leaves(server, generated):
    """A short request ends while a long one runs; when a client leaves, its place is free for one that waits."""
    body = {"text_input": "x", "stream": True, "max_tokens": 60, "temperature": 0}
    with server.streaming("llm", **body) as first, server.streaming("llm", **body) as second:
        next(first), next(second)
        assert text_of(greedy(server, "hello")) == generated("hello")
        with server.streaming("llm", **body) as third:
            next(third)
    assert text_of(greedy(server, "hello")) == generated("hello")


def test_further_outputs(server):
    """Counts, the reason of the end and log probabilities come with each response."""
    names = ("finish_reason", "cumulative_logprob", "logprobs", "num_input_tokens", "num_output_tokens")
    wanted = {f"return_{name}": True for name in names}
    events = greedy(server, "hello", count=3, logprobs=1, **wanted)
    assert [each["finish_reason"] for each in events][-1] == "length"
    assert sum(each["num_output_tokens"] for each in events) == 3
    assert {each["num_input_tokens"] for each in events} == {5}
    positions = [position for each in events for position in json.loads(each["logprobs"])]
    assert [[value["rank"] for value in position.values()] for position in positions] == [[1]] * 3
    total = sum(value["logprob"] for position in positions for value in position.values())
    assert np.isclose(events[-1]["cumulative_logprob"], total, atol=1e-3)


def test_seeds(server):
    """The same seed gives the same text, alone or beside others."""
    body = {"text_input": "hello", "stream": True, "max_tokens": 20, "seed": 7, "top_k": 50, "top_p": 0.9}
    alone = text_of(server.stream("llm", **body))
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(greedy, server, prompt) for prompt in PROMPTS[:2]]
        assert text_of(server.stream("llm", **body)) == alone
        assert all(each.result() for each in others)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"text_input": "x" * 64},
            "the prompt has 64 tokens, and with at least one token of an answer it may have 63",
        ),
        ({"text_input": ""}, "input 'text_input' has no tokens: send a prompt that is not empty"),
        ({"text_input": "x", "top_p": 2}, "sampling parameter 'top_p' is 2, expected above 0 and at most 1"),
        ({"text_input": "x", "image": ["AA=="]}, "the model takes text only: omit the input 'image'"),
    ],
)
def test_refused(server, document, message):
    """The message says what to do."""
    answer = server.request("POST", "/v2/models/llm/generate", json.dumps(document))
    assert answer.status == 400
    assert message in json.loads(answer.body)["error"]
