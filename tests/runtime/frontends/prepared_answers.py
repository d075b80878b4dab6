# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""A stand-in for the prepared answers of a model: see caching/answers.py."""


class Answers:
    """Those that were prepared, whatever the response is."""

    def __init__(self):
        self.kept = {}
        self.sizes = []
        self.found = 0

    def find(self, request):
        answer = self.kept.get(request)
        self.found += answer is not None
        return answer

    def prepare(self, request, size, response, parts):
        self.sizes.append(size)
        self.kept[request] = b"".join(parts)
