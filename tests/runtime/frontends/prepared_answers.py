# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the prepared answers of a model: see caching/answers.py."""


class Answers:
    """Those that were prepared, whether or not the response is from a cache."""

    def __init__(self):
        self.kept = {}
        self.sizes = []
        self.found = 0

    def find(self, key):
        answer = self.kept.get(key)
        self.found += answer is not None
        return answer

    def prepare(self, request, response, nbytes, make):
        if response.id == request.id:
            self.sizes.append(request.size)
            self.kept[request.key] = make()
