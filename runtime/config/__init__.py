# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""From the text of a config.pbtxt to a validated, normalised model configuration.

A model's configuration goes through these steps, all of them pure:

    config = parse_model_config(text, path)                  or minimal_config(name, backend) where there is no file
    config = normalize(config, directory_name=..., ...)      fills in what the file leaves open
    validate_instances(config)                               before anything is started for the model
    validate_devices(config, gpus)                           the same, for each of its versions
    config = merge_auto_complete(config, returned)           only if the model has auto_complete_config
    config = normalize(config, directory_name=..., ...)      again: doing it twice changes nothing more
    validate(config, gpus)                                   LoadError with Triton's words
    unsupported_features(config)                             what we would not do; the caller fails or warns
    spec = model_spec(config)                                plain values, for everybody else

The first `normalize` is there because auto_complete_config is given the normalised configuration.
`inputs.check_request` then holds every request against the spec. Nothing in here reads a file of the model's.
"""
