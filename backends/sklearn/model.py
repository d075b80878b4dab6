# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The backend of models of scikit-learn, XGBoost and LightGBM, `backend: "sklearn"`.

A model has one input, rows of numbers or texts, and one output, its predictions: `input__0` and `output__0`, as in
Triton's FIL backend, unless the configuration names them.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any, ClassVar, Dict, List, Mapping, Tuple

import numpy as np
import triton_python_backend_utils as pb_utils

from pyruntime.backends.sklearn.predictors import FILENAMES, TEXTS, Predictor, load_predictor
from pyruntime.backends.toolkit.batching import BatchExecutor
from pyruntime.backends.toolkit.completion import check_tensors, complete
from pyruntime.backends.toolkit.files import find_model_file
from pyruntime.backends.toolkit.settings import Settings, TensorSpec, read_settings
from pyruntime.backends.toolkit.texts import TextArrays
from pyruntime.backends.toolkit.threads import threads_per_instance, usable_cores
from pyruntime.utils.dtypes import BY_CONFIG_NAME, DATATYPES
from pyruntime.utils.errors import ConfigError, LoadError

INPUT, OUTPUT = "input__0", "output__0"
_CONFIG_NAMES = {np.dtype(each.numpy): each.config_name for each in DATATYPES if each.numpy}


class TritonPythonModel:
    """One instance of a model."""

    # The stub sets it before it calls any method.
    location: ClassVar[Dict[str, str]]

    @classmethod
    def auto_complete_config(cls, auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Complete the configuration by the model itself, which predicts one row. Raises LoadError."""
        complete(auto_complete_model_config.as_dict(), cls.location, _describe)
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the model. Raises LoadError."""
        settings = read_settings(json.loads(args["model_config"]))
        if (len(settings.inputs), len(settings.outputs)) != (1, 1):
            raise ConfigError(
                f"model '{settings.name}' has {len(settings.inputs)} inputs and {len(settings.outputs)} outputs, and "
                "the backend sklearn serves models with one of each"
            )
        threads = threads_per_instance(settings.instance_count, usable_cores())
        version_dir = os.path.join(args["model_repository"], args["model_version"])
        self._predictor = load_predictor(settings, find_model_file(settings, version_dir, FILENAMES), threads)
        (given,), (made,) = settings.inputs, settings.outputs
        check_tensors(
            settings,
            [_input(given.name, self._predictor, given.datatype)],
            [_known_output(settings, self._predictor, given, made)],
        )
        self._dtype = np.dtype(BY_CONFIG_NAME[made.datatype].numpy)
        self._names = given.name, made.name
        self._batches = BatchExecutor(self._run, TextArrays("scikit-learn"), [made.name], settings.max_batch_size > 0)

    def execute(self, requests: List[pb_utils.InferenceRequest]) -> List[pb_utils.InferenceResponse]:
        """Predict all rows of the requests in one call."""
        return self._batches.execute(requests)

    def _run(self, inputs: Dict[str, Any], names: List[str]) -> Mapping[str, Any]:
        given, made = self._names
        predicted = self._predictor.predict(inputs[given])
        return {made: predicted.astype(self._dtype, copy=False)}


def _describe(settings: Settings, version_dir: str) -> Tuple[List[TensorSpec], List[TensorSpec]]:
    path = find_model_file(settings, version_dir, FILENAMES)
    predictor = load_predictor(settings, path, 1)
    try:
        datatype, predicted = predictor.try_out(settings.inputs[0].datatype if settings.inputs else "")
    except Exception as exc:
        raise LoadError(
            f"model '{settings.name}': '{path}' predicts neither a row of zeros nor one of texts, so that its tensors "
            f"are not known: declare input and output in config.pbtxt. {type(exc).__name__}: {exc}"
        ) from exc
    return [_input(INPUT, predictor, datatype)], [_output(OUTPUT, predicted)]


def _input(name: str, predictor: Predictor, datatype: str) -> TensorSpec:
    features = predictor.features
    if features is None:
        features = 1 if datatype == TEXTS else -1
    return TensorSpec(name, datatype, (-1, features))


def _output(name: str, predicted: Any) -> TensorSpec:
    # Names of classes are texts.
    datatype = TEXTS if predicted.dtype.kind in "OSU" else _CONFIG_NAMES[predicted.dtype]
    return TensorSpec(name, datatype, (-1, *predicted.shape[1:]))


def _known_output(settings: Settings, predictor: Predictor, given: TensorSpec, made: TensorSpec) -> TensorSpec:
    """The output with the shape that the model has, if that is known. Datatypes are converted, and need not agree."""
    try:
        _, predicted = predictor.try_out(given.datatype)
    except Exception as exc:
        pb_utils.Logger.log_warn(
            f"the output of model '{settings.name}' is not checked, since it predicts no row of "
            f"{'texts' if given.datatype == TEXTS else 'zeros'}: {type(exc).__name__}: {exc}"
        )
        return replace(made, dims=None)
    return replace(_output(made.name, predicted), datatype=made.datatype)
