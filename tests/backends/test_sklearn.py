# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The threads of models of scikit-learn."""

import threading

import numpy as np
import pytest

from pyruntime.backends.sklearn.predictors import load_predictor
from pyruntime.backends.toolkit.settings import read_settings
from pyruntime.utils.errors import ConfigError

joblib = pytest.importorskip("joblib", reason="scikit-learn is not installed (pip install scikit-learn)")


@pytest.mark.parametrize("jobs", [-1, 2, None])
def test_threads(tmp_path, jobs):
    """All threads are those of the instance: neither joblib of estimators with `n_jobs` nor BLAS starts more."""
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    threadpoolctl = pytest.importorskip("threadpoolctl", reason="threadpoolctl is not installed")
    pipeline = pytest.importorskip("sklearn.pipeline", reason="scikit-learn is not installed")
    rows = np.array([[0, 0], [1, 1]] * 4, np.float32)
    forest = ensemble.RandomForestClassifier(8, n_jobs=jobs).fit(rows, rows[:, 0])
    # Fitted copies of estimators are no parameters of what holds them.
    held = ensemble.VotingClassifier([("forest", forest)]).fit(rows, rows[:, 0])
    joblib.dump(pipeline.make_pipeline(held), tmp_path / "model.joblib")
    settings = read_settings({"name": "m", "parameters": {"ALLOW_PICKLE": {"string_value": "true"}}})
    with threadpoolctl.threadpool_limits():
        predictor = load_predictor(settings, str(tmp_path / "model.joblib"), 1)
        used = record_threads(predictor.call.__self__[0].estimators_[0])
        predictor.predict(rows)
        assert used == {threading.get_ident()}
        assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} <= {1}


def test_jobs_that_are_few_enough(tmp_path):
    """An estimator that wants fewer threads than the instance has keeps its number."""
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    rows = np.array([[0, 0], [1, 1]], np.float32)
    joblib.dump(linear.LinearRegression(n_jobs=2).fit(rows, rows), tmp_path / "model.joblib")
    settings = read_settings({"name": "m", "parameters": {"ALLOW_PICKLE": {"string_value": "true"}}})
    assert load_predictor(settings, str(tmp_path / "model.joblib"), 3).call.__self__.n_jobs == 2


def record_threads(forest):
    """The set of threads that call the trees of a forest, which grows with each call."""
    used = set()

    def recorded(predict):
        def call(*args, **kwargs):
            used.add(threading.get_ident())
            return predict(*args, **kwargs)

        return call

    for tree in forest.estimators_:
        tree.predict_proba = recorded(tree.predict_proba)
    return used


@pytest.mark.parametrize(("filename", "framework"), [("model.ubj", "XGBoost"), ("model.txt", "LightGBM")])
def test_probabilities_of_a_booster_are_refused_at_the_load(filename, framework):
    settings = read_settings({"name": "m", "parameters": {"predict_proba": {"string_value": "true"}}})
    with pytest.raises(ConfigError, match=rf"^model 'm' has the parameter predict_proba, .* a booster of {framework}:"):
        load_predictor(settings, f"/models/m/1/{filename}", 1)
