# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads models of scikit-learn, XGBoost and LightGBM from their files, as functions from rows to predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Callable, Tuple

import numpy as np

from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import LoadError

# Files of XGBoost, LightGBM and skops hold data only. A pickle runs code of its author when it is loaded.
FILENAMES = ["model.skops", "model.ubj", "model.json", "model.txt", "model.pkl", "model.joblib"]
ALLOW_PICKLE = "ALLOW_PICKLE"
# The types that a file of skops may have beyond those that skops trusts itself, separated by commas.
TRUSTED_TYPES = "TRUSTED_TYPES"
# Probabilities of all classes in place of the class, as in Triton's FIL backend.
PREDICT_PROBA = "predict_proba"


@dataclass(frozen=True)
class Predictor:
    """`predict` takes rows of `features` numbers, FP32, and returns an array with one row for each."""

    features: int
    predict: Callable[[Any], Any]

    def describe_output(self) -> Tuple[Any, Tuple[int, ...]]:
        """The dtype of predictions, and the shape of one."""
        made = self.predict(np.zeros((1, self.features), np.float32))
        return made.dtype, tuple(made.shape[1:])


def load_predictor(settings: Settings, path: str, threads: int) -> Predictor:
    """The predictor in a file, by the suffix of its name. Raises LoadError."""
    suffix = os.path.splitext(path)[1]
    try:
        if suffix in (".ubj", ".json"):
            return _xgboost(settings, path, threads)
        if suffix == ".txt":
            return _lightgbm(settings, path, threads)
        if suffix == ".skops":
            return _sklearn(settings, _load_skops(settings, path), threads)
        if suffix in (".pkl", ".joblib"):
            return _sklearn(settings, _unpickle(settings, path), threads)
    except LoadError:
        raise
    except Exception as exc:
        raise LoadError(f"model '{settings.name}': '{path}' cannot be loaded: {type(exc).__name__}: {exc}") from exc
    raise LoadError(f"model '{settings.name}': '{path}' has none of the suffixes of {', '.join(FILENAMES)}")


def _xgboost(settings: Settings, path: str, threads: int) -> Predictor:
    xgboost = import_framework("xgboost", "xgboost", "", settings.name)
    booster = xgboost.Booster({"nthread": threads}, model_file=path)
    return Predictor(booster.num_features(), booster.inplace_predict)


def _lightgbm(settings: Settings, path: str, threads: int) -> Predictor:
    lightgbm = import_framework("lightgbm", "lightgbm", "", settings.name)
    booster = lightgbm.Booster(model_file=path)
    return Predictor(booster.num_feature(), lambda rows: booster.predict(rows, num_threads=threads))


def _load_skops(settings: Settings, path: str) -> Any:
    skops = import_framework("skops.io", "skops", "sklearn", settings.name)
    trusted = [name.strip() for name in settings.parameters.get(TRUSTED_TYPES, "").split(",") if name.strip()]
    unknown = [name for name in skops.get_untrusted_types(file=path) if name not in trusted]
    if unknown:
        raise LoadError(
            f"model '{settings.name}': '{path}' has objects of types that skops does not trust: {', '.join(unknown)}. "
            f"Name them in the parameter {TRUSTED_TYPES}, separated by commas, if you trust the file"
        )
    return skops.load(path, trusted=trusted)


def _unpickle(settings: Settings, path: str) -> Any:
    if not settings.boolean(ALLOW_PICKLE):
        raise LoadError(
            f"model '{settings.name}': '{path}' is a pickle, which runs code of its author when it is loaded. Save the "
            f"model by skops.io.dump, or set the parameter {ALLOW_PICKLE} to true if you trust the file"
        )
    return import_framework("joblib", "joblib", "sklearn", settings.name).load(path)


def _sklearn(settings: Settings, estimator: Any, threads: int) -> Predictor:
    limits = import_framework("threadpoolctl", "threadpoolctl", "sklearn", settings.name)
    limits.threadpool_limits(threads)
    wants_classes = settings.boolean(PREDICT_PROBA)
    if wants_classes and not hasattr(estimator, "predict_proba"):
        kind = type(estimator).__name__
        raise LoadError(f"model '{settings.name}' has the parameter {PREDICT_PROBA}, which {kind} cannot compute")
    return Predictor(estimator.n_features_in_, estimator.predict_proba if wants_classes else estimator.predict)
