# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend "sklearn": models of scikit-learn, XGBoost and LightGBM by their own files."""

from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed (pip install scikit-learn)")

BACKEND = 'backend: "sklearn"\n'
LENIENT = ("--exit-on-error=false", "--strict-readiness=false")
ROWS = np.array([[0, 0], [1, 1], [2, 2], [3, 3]] * 10, np.float32)
LABELS = np.array(["low", "low", "high", "high"] * 10)


def parameters(**values):
    return "".join(
        f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}\n' for name, value in values.items()
    )


@pytest.fixture(scope="module")
def classifier():
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression().fit(ROWS, LABELS)


def predicted(server, name):
    return server.infer(name, {"input__0": ROWS[:4]}).as_numpy("output__0").tolist()


def test_models_of_skops(serve, model, classifier):
    """A file of skops needs no configuration but the backend; names of classes are texts.

    A pipeline has types that skops does not trust itself: the configuration must name them.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    skops = pytest.importorskip("skops.io", reason="skops is not installed (pip install skops)")
    skops.dump(classifier, model("labels", None, BACKEND) / "1" / "model.skops")
    columns = make_column_transformer((FunctionTransformer(np.absolute), [0]), remainder="passthrough")
    pipeline = make_pipeline(SimpleImputer(), columns, classifier).fit(ROWS, LABELS)
    types = ", ".join(skops.get_untrusted_types(data=skops.dumps(pipeline)))
    assert "numpy" in types
    for name, more in (("unnamed", ""), ("named", parameters(TRUSTED_TYPES=types))):
        skops.dump(pipeline, model(name, None, BACKEND + more) / "1" / "model.skops")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        config = client.get_model_config("labels")
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert f"has objects of types that skops does not trust: {types}. Name them in the" in reasons["unnamed"]
    assert predicted(server, "named") == [[b"low"], [b"low"], [b"high"], [b"high"]]
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [2])
    assert config["output"][0]["data_type"] == "TYPE_STRING"
    assert predicted(server, "labels") == [[b"low"], [b"low"], [b"high"], [b"high"]]


def test_models_of_texts(serve, model):
    """Vectorizers take a text for each row, and columns of texts are texts, whether the model is configured or not.

    A model that knows no row which could be tried must be configured, and then is served.
    """
    from sklearn.compose import make_column_transformer
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    skops = pytest.importorskip("skops.io", reason="skops is not installed (pip install skops)")
    rows = np.array([["red", "1"], ["blue", "2"], ["red", "3"]], object)
    texts = ["good day", "bad day", "good"]
    columns = make_column_transformer((OneHotEncoder(), [0]), (StandardScaler(), [1]))
    made = {
        "texts": make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, [1, 0, 1]),
        "columns": make_pipeline(OneHotEncoder(), LogisticRegression()).fit(rows, [0, 1, 0]),
        "mixed": make_pipeline(columns, LogisticRegression()).fit(rows, [0, 1, 0]),
    }
    tensors = (
        'max_batch_size: 8 input {{ name: "input__0" data_type: TYPE_STRING dims: [ {} ] }}\n'
        'output {{ name: "output__0" data_type: TYPE_INT32 dims: [ 1 ] reshape {{ shape: [ ] }} }}\n'
    )
    types = parameters(TRUSTED_TYPES=", ".join({t for m in made.values() for t in untrusted(skops, m)}))
    for name, pipeline in made.items():
        dims = 1 if name == "texts" else 2
        for configured, config in ((name, ""), (f"{name}_configured", tensors.format(dims))):
            skops.dump(pipeline, model(configured, None, BACKEND + types + config) / "1" / "model.skops")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        found = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
        inputs = [client.get_model_config(name)["input"][0] for name in ("texts", "columns")]
    assert [(each["data_type"], each["dims"]) for each in inputs] == [("TYPE_STRING", [1]), ("TYPE_STRING", [2])]
    assert "predicts neither a row of zeros nor one of texts, so that its tensors are not known: de" in found["mixed"]
    for name in ("texts", "texts_configured"):
        answer = server.infer(name, {"input__0": np.array([[each] for each in texts], object)})
        assert answer.as_numpy("output__0").ravel().tolist() == made["texts"].predict(texts).tolist()
    for name in ("columns", "columns_configured", "mixed_configured"):
        answer = server.infer(name, {"input__0": rows}).as_numpy("output__0")
        assert answer.ravel().tolist() == made[name.partition("_")[0]].predict(rows).tolist()


def test_models_of_doubles(serve, model):
    """A model that predicts no rows of FP32, as one of k-means fitted with doubles, has an input of FP64."""
    from sklearn.cluster import KMeans

    skops = pytest.importorskip("skops.io", reason="skops is not installed (pip install skops)")
    means = KMeans(2, n_init=1, random_state=0).fit(ROWS.astype(float))
    tensors = (
        'max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP64 dims: [ 2 ] }\n'
        'output { name: "output__0" data_type: TYPE_INT32 dims: [ 1 ] reshape { shape: [ ] } }\n'
    )
    for name, config in (
        ("open", ""),
        ("configured", tensors),
        ("wrong", tensors.replace("[ 1 ] reshape { shape: [ ] }", "[ 2 ]")),
    ):
        skops.dump(means, model(name, None, BACKEND + config) / "1" / "model.skops")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        assert client.get_model_config("open")["input"][0]["data_type"] == "TYPE_FP64"
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert "the model expects 1 dimensions (shape [-1])" in reasons["wrong"]
    rows = ROWS[:4].astype(float)
    for name in ("open", "configured"):
        answer = server.infer(name, {"input__0": rows}).as_numpy("output__0")
        assert answer.ravel().tolist() == means.predict(rows).tolist()


def untrusted(skops, estimator):
    return skops.get_untrusted_types(data=skops.dumps(estimator))


def test_pickles(serve, model, classifier):
    """A pickle is loaded only if the configuration says so; a classifier gives probabilities if it is asked to."""
    import joblib

    joblib.dump(classifier, model("refused", None, BACKEND) / "1" / "model.joblib")
    trusted = parameters(ALLOW_PICKLE="true", predict_proba="true")
    joblib.dump(classifier, model("trusted", None, BACKEND + trusted) / "1" / "model.pkl")
    server = serve(*LENIENT)
    with closing(server.client()) as client:
        reasons = {row["name"]: row.get("reason", "") for row in client.get_model_repository_index()}
    assert "is a pickle, which runs code of its author when it is loaded. Save the model by skops" in reasons["refused"]
    assert np.allclose(predicted(server, "trusted"), classifier.predict_proba(ROWS[:4]))


def test_models_of_lightgbm(serve, model):
    """A text file of LightGBM is the model."""
    lightgbm = pytest.importorskip("lightgbm", reason="lightgbm is not installed (pip install lightgbm)")
    booster = lightgbm.train(
        {"verbose": -1, "min_data_in_leaf": 1}, lightgbm.Dataset(ROWS.astype(float), ROWS.sum(1)), num_boost_round=3
    )
    booster.save_model(model("light", None, BACKEND) / "1" / "model.txt")
    server = serve()
    assert np.allclose(predicted(server, "light"), booster.predict(ROWS[:4])[:, None])


def test_models_of_xgboost(serve, model):
    """A file of XGBoost, in either of its formats, is the model; a configuration may have other datatypes."""
    xgboost = pytest.importorskip("xgboost", reason="xgboost is not installed (pip install xgboost-cpu)")
    booster = xgboost.train({"max_depth": 2}, xgboost.DMatrix(ROWS, ROWS.sum(1)), num_boost_round=3)
    booster.save_model(model("json", None, BACKEND) / "1" / "model.json")
    tensors = (
        'max_batch_size: 8 input { name: "input__0" data_type: TYPE_FP32 dims: [ 2 ] }\n'
        'output { name: "output__0" data_type: TYPE_FP64 dims: [ 1 ] reshape { shape: [ ] } }\n'
    )
    booster.save_model(model("ubj", None, BACKEND + tensors) / "1" / "model.ubj")
    server = serve()
    wanted = booster.predict(xgboost.DMatrix(ROWS[:4]))[:, None]
    assert np.allclose(predicted(server, "json"), wanted)
    answer = server.infer("ubj", {"input__0": ROWS[:4]}).as_numpy("output__0")
    assert (answer.dtype, np.allclose(answer, wanted)) == (np.float64, True)
