# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Instances that share weights. A unit test has one thread of them; how many there are is the server's business."""


def test_product(load_model, monkeypatch):
    """The weights are three times the identity."""
    model = load_model("model_repository/thread_instances")
    monkeypatch.setattr(model.module, "COMPUTE_S", 0)
    result = model.infer({"INPUT": [1, 2, 3, 4]})
    assert result["OUTPUT"].tolist() == [3, 6, 9, 12]
    assert result["AT_ONCE"].item() == 1
