# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Loads models of scikit-learn, XGBoost and LightGBM from their files, as functions from rows to predictions."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence, Tuple

import numpy as np

from pyruntime.backends.toolkit.frameworks import import_framework
from pyruntime.backends.toolkit.settings import Settings
from pyruntime.utils.errors import ConfigError, LoadError

# Files of XGBoost, LightGBM and skops hold data only. A pickle runs code of its author when it is loaded.
FILENAMES = ["model.skops", "model.ubj", "model.json", "model.txt", "model.pkl", "model.joblib"]
ALLOW_PICKLE = "ALLOW_PICKLE"
# The types that a file of skops may have beyond those that skops trusts itself, separated by commas.
TRUSTED_TYPES = "TRUSTED_TYPES"
# Probabilities of all classes in place of the class, as in Triton's FIL backend.
PREDICT_PROBA = "predict_proba"
# Files that hold no classifier, by the suffixes of their names.
_BOOSTERS = {".ubj": "XGBoost", ".json": "XGBoost", ".txt": "LightGBM"}
# The time and the place at the start of XGBoost's errors.
_PLACE = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ")


# The datatypes of inputs if the configuration has none. Every other datatype than that of texts is a number.
NUMBERS, DOUBLES, TEXTS = "TYPE_FP32", "TYPE_FP64", "TYPE_STRING"


@dataclass(frozen=True)
class Predictor:
    """`call` takes rows of `features` values, and returns an array with one row for each.

    `features` is None if the model does not say it: it takes one text for each row then, as vectorizers do, or rows of
    any length. `categories` are those of each column, if the model has them.
    """

    features: Optional[int]
    call: Callable[[Any], Any]
    categories: Sequence[Any] = ()

    def predict(self, rows: Any) -> Any:
        """The predictions for an array of numbers, or of str."""
        is_text = self.features is None and rows.dtype == object
        return np.asarray(self.call(rows.ravel() if is_text else rows))

    def try_out(self, datatype: str) -> Tuple[str, Any]:
        """Predict one row. Returns its datatype and the prediction.

        `datatype` is the configured one, "" if there is none: a model of numbers, or else of texts. Numbers are FP32
        but for models that take FP64 only, as k-means that was fitted with it. Raises what the model raises if it
        predicts none of the rows: what it knows cannot be seen from outside in general.
        """
        wanted = datatype if datatype in ("", DOUBLES, TEXTS) else NUMBERS
        reason: Optional[Exception] = None
        for tried, row in self._rows():
            if wanted in ("", tried):
                try:
                    return tried, self.predict(row)
                except Exception as exc:
                    reason = reason or exc
        raise reason or ValueError("it does not say how many features it has")

    def _rows(self) -> Iterator[Tuple[str, Any]]:
        if self.categories:
            known = [each[0] for each in self.categories]
            if any(isinstance(each, str) for each in known):
                # A client can only send texts then.
                yield TEXTS, np.array([list(map(str, known))], object)
            else:
                yield from _numbers(known)
        if self.features is not None:
            yield from _numbers([0] * self.features)
        yield TEXTS, np.full((1, self.features or 1), "0", object)


def _numbers(row: Sequence[float]) -> Iterator[Tuple[str, Any]]:
    yield NUMBERS, np.array([row], np.float32)
    yield DOUBLES, np.array([row], np.float64)


def describe_error(exc: BaseException) -> str:
    """An error without the places in XGBoost's source and its stack trace."""
    return _PLACE.sub("", str(exc).partition("\nStack trace:")[0]).strip()


def load_predictor(settings: Settings, path: str, threads: int) -> Predictor:
    """The predictor in a file, by the suffix of its name. Raises ConfigError and LoadError."""
    suffix = os.path.splitext(path)[1]
    if suffix in _BOOSTERS and settings.boolean(PREDICT_PROBA):
        raise ConfigError(
            f"model '{settings.name}' has the parameter {PREDICT_PROBA}, which is for classifiers of scikit-learn, and "
            f"'{path}' is a booster of {_BOOSTERS[suffix]}: it predicts probabilities where it was trained to, "
            "whatever class saved it. Remove the parameter, or save the classifier itself by skops"
        )
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
        kind, reason = type(exc).__name__, describe_error(exc)
        raise LoadError(f"model '{settings.name}': '{path}' cannot be loaded: {kind}: {reason}") from exc
    raise LoadError(f"model '{settings.name}': '{path}' has none of the suffixes of {', '.join(FILENAMES)}")


def _xgboost(settings: Settings, path: str, threads: int) -> Predictor:
    xgboost = import_framework("xgboost", "xgboost-cpu", "xgboost", settings.name)
    booster = xgboost.Booster({"nthread": threads}, model_file=path)
    return Predictor(booster.num_features(), booster.inplace_predict)


def _lightgbm(settings: Settings, path: str, threads: int) -> Predictor:
    lightgbm = import_framework("lightgbm", "lightgbm", "lightgbm", settings.name)
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
    _limit_jobs(estimator, threads)
    wants_classes = settings.boolean(PREDICT_PROBA)
    if wants_classes and not hasattr(estimator, "predict_proba"):
        kind = type(estimator).__name__
        raise LoadError(f"model '{settings.name}' has the parameter {PREDICT_PROBA}, which {kind} cannot compute")
    first = estimator.steps[0][1] if hasattr(estimator, "steps") else estimator
    return Predictor(
        # Vectorizers have no such attribute.
        getattr(estimator, "n_features_in_", None),
        estimator.predict_proba if wants_classes else estimator.predict,
        getattr(first, "categories_", ()),
    )


def _limit_jobs(part: Any, threads: int) -> None:
    """Have an estimator, and all that it consists of, start no more threads than the instance has."""
    if isinstance(part, (list, tuple)):
        for each in part:
            _limit_jobs(each, threads)
    elif isinstance(part, dict):
        _limit_jobs(list(part.values()), threads)
    elif hasattr(part, "get_params") and not isinstance(part, type):
        jobs = getattr(part, "n_jobs", None)
        if isinstance(jobs, int):
            # -1 is all cores.
            part.n_jobs = threads if jobs < 0 else min(jobs, threads)
        _limit_jobs(vars(part), threads)
