# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of compare_answers, in groups: one module each, with its cases in `CASES`.

A new group is one more module, its line here, and its models in answer_models.
"""

from answer_cases import (
    classification,
    connections,
    generate,
    grpc_requests,
    http_requests,
    information,
    memory,
    parameters,
    repository,
    sequences,
    settings,
    statistics,
    tensors,
)

# Statistics come before what counts more requests of their models, and the repository is changed last.
GROUPS = {
    "information": information.CASES,
    "statistics": statistics.CASES,
    "tensors": tensors.CASES,
    "http requests": http_requests.CASES,
    "grpc requests": grpc_requests.CASES,
    "parameters": parameters.CASES,
    "classification": classification.CASES,
    "memory": memory.CASES,
    "sequences": sequences.CASES,
    "generate": generate.CASES,
    "settings": settings.CASES,
    "connections": connections.CASES,
    "repository": repository.CASES,
}
