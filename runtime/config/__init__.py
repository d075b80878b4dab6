# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Parses, completes and validates model configurations (config.pbtxt).

A configuration goes through these steps, all of them pure:

    config = parse_model_config(text, path)                  or minimal_config(name) where there is no file
    config = normalize(config, directory_name=..., ...)      fills in what the file leaves open
    validate_instances(config)                               before anything is started for the model
    validate_devices(config, gpus)                           the same, for each of its versions
    config = complete(config, returned)                      only if the model's code completes it: normalises again
    validate(config, gpus)                                   LoadError with Triton's words
    unsupported_features(config)                             the caller logs a warning for each
    spec = model_spec(config)                                plain values, for the rest of the server

`normalize` runs before auto_complete_config because that function receives the normalised configuration.
`inputs.check_request` then validates every request against the spec. This package reads no file of a model.
"""
