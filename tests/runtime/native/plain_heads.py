# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The reference for heads of plain HTTP requests."""

from pyruntime.runtime.frontends.http.request_head import BadRequest, HeadReader


class ParsingReader(HeadReader):
    """Reads every head by the parser."""

    def _read_checked(self, head):
        return None


# With a pattern that matches no header every head is read by the parser.
REFERENCE = ParsingReader(pattern="$a")


def read_by_reference(head):
    try:
        return REFERENCE.read(head)
    except BadRequest as exc:
        return exc
