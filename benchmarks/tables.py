# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Figures of several runs, as a table."""

import statistics


def spread(values, digits=0):
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    f = f"{{:.{digits}f}}"
    mid = f.format(statistics.median(values))
    if len(values) == 1:
        return mid
    return f"{mid} [{f.format(min(values))}..{f.format(max(values))}]"


def print_table(rows):
    widths = [max(len(str(r[i])) for r in rows) for i in range(len(rows[0]))]
    for n, r in enumerate(rows):
        print("  ".join(str(c).ljust(w) for c, w in zip(r, widths)).rstrip())
        if n == 0:
            print("  ".join("-" * w for w in widths))


def ratio(runs, a, b, key):
    pairs = [x[key] / y[key] for x, y in zip(runs[a], runs[b]) if x.get(key) and y.get(key)]
    return spread(pairs, 2)
