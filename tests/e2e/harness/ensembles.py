# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Ensembles written for one test."""

TENSOR = '{ name: "%s" data_type: TYPE_INT64 dims: [ -1 ] %s }'


def step(model, inputs, outputs, version=-1):
    """A step: `inputs` and `outputs` map the model's names to those of the ensemble."""
    maps = [f'input_map {{ key: "{key}" value: "{value}" }}' for key, value in inputs.items()]
    maps += [f'output_map {{ key: "{key}" value: "{value}" }}' for key, value in outputs.items()]
    return f'step {{ model_name: "{model}" model_version: {version} {" ".join(maps)} }}'


def ensemble(*steps, inputs=("IN",), outputs=("OUT",), optional=(), more="", scheduling=""):
    """A config.pbtxt of an ensemble, one step a line."""
    reads = ", ".join(TENSOR % (name, "optional: true" if name in optional else "") for name in inputs)
    writes = ", ".join(TENSOR % (name, "") for name in outputs)
    body = "\n".join((scheduling, *steps))
    return f'platform: "ensemble"\ninput [ {reads} ]\noutput [ {writes} ]\n{more}\nensemble_scheduling {{ {body}\n}}\n'


def chain(*models, **options):
    """An ensemble of models from IN to OUT, each behind the one before."""
    names = ["IN", *(f"t{index}" for index in range(1, len(models))), "OUT"]
    pairs = zip(models, names, names[1:], strict=False)
    return ensemble(*(step(model, {"IN": read}, {"OUT": written}) for model, read, written in pairs), **options)
