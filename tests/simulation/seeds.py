# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The seeds that once failed: each run begins with them."""

from pathlib import Path

KEPT = Path(__file__).with_name("seeds.txt")


def _read(text):
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return tuple(int(line) for line in lines if line)


KEPT_SEEDS = _read(KEPT.read_text())
