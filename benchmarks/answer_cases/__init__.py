# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The cases of compare_answers, in groups: one module each, with its cases in `CASES`.

A new group is one more module, its line here, and its models in answer_models.
"""

from answer_cases import (
    caches,
    classification,
    connections,
    ensembles,
    generate,
    grpc_requests,
    http_requests,
    information,
    limits,
    memory,
    parameters,
    queues,
    repository,
    sequences,
    settings,
    statistics,
    tensors,
    warmup,
)

# Statistics come before what counts more requests of their models, and the repository is changed last. Models whose
# files come with a load stay in an index.
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
    "queues": queues.CASES,
    "caches": caches.CASES,
    "generate": generate.CASES,
    "settings": settings.CASES,
    "connections": connections.CASES,
    "repository": repository.CASES,
    "ensembles": ensembles.CASES,
    "warm-up": warmup.CASES,
    "limits": limits.CASES,
}
