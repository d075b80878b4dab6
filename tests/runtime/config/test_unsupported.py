# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Configurations that ask for more than there is."""

import pytest

from pyruntime.runtime.config.parse import parse_model_config
from pyruntime.runtime.config.unsupported import unsupported_features


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("instance_group { host_policy: 'p' }", "asks for a host policy"),
        ("parameters { key: 'TRITON_BATCH_STRATEGY_PATH' }", "asks for a custom batching strategy"),
        ("output [ { name: 'A' }, { name: 'B' }, { name: 'A' } ]", "lists the output 'A' 2 times"),
        ("metric_tags { key: 'a-b' value: 'c' }", "asks for the metric tag 'a-b', which cannot be a label"),
    ],
)
def test_each_feature_has_a_sentence(text, word):
    """One sentence that names the model and the feature."""
    (sentence,) = unsupported_features(parse_model_config(f"name: 'm' {text}", "config.pbtxt"))
    assert sentence.startswith("model 'm' ")
    assert word in sentence


@pytest.mark.parametrize(
    "text",
    [
        "",
        "instance_group { rate_limiter { resources { name: 'R' count: 1 } priority: 2 } }",
        "max_batch_size: 4 dynamic_batching { default_queue_policy { max_queue_size: 1 } }",
        "response_cache { enable: true } model_repository_agents { agents { name: 'a' } } "
        "optimization { eager_batching: true }",
        "sequence_batching {}",
        "sequence_batching { oldest {} control_input { name: 'START' } }",
        "backend: 'python' sequence_batching { state { input_name: 'S' output_name: 'S' } }",
        "backend: 'native' sequence_batching { state { input_name: 'S' output_name: 'S' } }",
        "sequence_batching { iterative_sequence: true }",
        "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 5 }",
    ],
)
def test_most_configurations_ask_for_nothing_special(text):
    """Fields that are there but ask for nothing are not mentioned."""
    assert unsupported_features(parse_model_config(text, "config.pbtxt")) == []
