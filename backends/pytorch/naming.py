# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Which input of a configuration is which argument of a PyTorch model, and which output is which result. (pure)

The rules are those of Triton's PyTorch backend, since such models do not tell the names of their results. Names are
those of arguments of `forward`, or end with an index (`INPUT__0`), or else the order of the configuration counts.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

_INDEXED = re.compile(r"__(\d+)$")


class Arguments:
    """Arranges inputs for a call. `order` has the name of each positional input, by the rules of the module."""

    def __init__(self, inputs: Sequence[str], arguments: Optional[Sequence[str]]) -> None:
        """`arguments` are the names of `forward`'s arguments, None if they are not known."""
        if arguments is not None and inputs and set(inputs) <= set(arguments):
            self.order = [name for name in arguments if name in inputs]
            self._is_named = True
        else:
            self.order = by_index(inputs) or list(inputs)
            self._is_named = False

    def arrange(self, inputs: Mapping[str, Any]) -> Tuple[List[Any], Dict[str, Any]]:
        """Positional arguments and, after an optional one that the request omits, those by name.

        Raises ValueError if an input is missing whose place others would take.
        """
        positional: List[Any] = []
        named: Dict[str, Any] = {}
        missing = ""
        for name in self.order:
            if name not in inputs:
                missing = missing or name
            elif not missing:
                positional.append(inputs[name])
            elif self._is_named:
                named[name] = inputs[name]
            else:
                raise ValueError(f"input '{missing}' must be given, because '{name}' comes after it")
        return positional, named


class Results:
    """Finds the configured outputs in what a model returns: a value, a tuple or list, or a dict."""

    def __init__(self, outputs: Sequence[str]) -> None:
        self._outputs = list(outputs)
        indices = indices_of(outputs)
        self._places = dict(zip(outputs, indices)) if indices else {name: at for at, name in enumerate(outputs)}

    def find(self, returned: Any, wanted: Sequence[str]) -> Dict[str, Any]:
        """The wanted outputs by name. Raises ValueError if the model did not return one of them."""
        if isinstance(returned, Mapping):
            results = {str(key): value for key, value in returned.items()}
            return {name: self._of_dict(results, name) for name in wanted}
        values = list(returned) if isinstance(returned, (tuple, list)) and not _is_texts(returned) else [returned]
        found = {}
        for name in wanted:
            place = self._places[name]
            if place >= len(values):
                raise ValueError(f"the model returned {len(values)} outputs, and '{name}' is number {place} of them")
            found[name] = values[place]
        return found

    def _of_dict(self, returned: Mapping[str, Any], name: str) -> Any:
        if name not in returned:
            keys = ", ".join(returned)
            raise ValueError(f"the model returned a dict without the output '{name}', it has: {keys}")
        return returned[name]


def indices_of(names: Sequence[str]) -> Optional[List[int]]:
    """The indices at the end of the names, `<name>__<index>`; None if a name has none, or if two have the same."""
    found = [_INDEXED.search(name) for name in names]
    indices = [int(each.group(1)) for each in found if each is not None]
    return indices if len(indices) == len(names) == len(set(indices)) else None


def by_index(names: Sequence[str]) -> Optional[List[str]]:
    """The names in the order of their indices; None if they have none."""
    indices = indices_of(names)
    return None if indices is None else [name for _, name in sorted(zip(indices, names))]


def _is_texts(returned: Sequence[Any]) -> bool:
    """Whether a list is one output: a tensor of texts, which may have none."""
    return isinstance(returned, list) and (not returned or isinstance(returned[0], str))
