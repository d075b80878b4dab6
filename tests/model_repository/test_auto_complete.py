# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A model that completes its own configuration."""


def test_configuration(load_model):
    """The completed configuration is that of the model."""
    config = load_model("model_repository/auto_complete").config
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" in config
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["input"]] == [
        ("INPUT", "TYPE_FP32", [4])
    ]


def test_squares(load_model):
    """Rows of a batch, each squared."""
    model = load_model("model_repository/auto_complete")
    assert model.infer({"INPUT": [[1, 2, 3, 4], [0, 0, 0, 5]]})["OUTPUT"].tolist() == [[1, 4, 9, 16], [0, 0, 0, 25]]
