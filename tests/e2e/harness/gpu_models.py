# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Models that note where they find tensors, on a GPU or in main memory, and requests to them."""

import numpy as np
from numpy.testing import assert_array_equal

# `note` notes where a tensor was, in a file beside the model: the fixture `seen` reads it.
NOTE = '''
def note(tensor, name="seen"):
    """Note where the tensor was: G on the GPU, C in main memory."""
    with open(os.path.join(os.path.dirname(__file__), name), "a") as file:
        file.write("C" if tensor.is_cpu() else "G")
'''


class Notes:
    """What the models of a repository note. Notes from before are dropped."""

    def __init__(self, repository):
        self._repository = repository
        for path in repository.glob("*/1/*"):
            if path.name in ("seen", "back"):
                path.unlink()

    def __call__(self, model, name="seen"):
        """What a model has noted under this name since the last time."""
        path = self._repository / model / "1" / name
        found = path.read_text() if path.exists() else ""
        path.unlink(missing_ok=True)
        return found


def infer(server, model, array, id=""):
    """The output OUT of a request with the input IN."""
    return server.infer(model, {"IN": array}, request_id=id).as_numpy("OUT")


def check_kept(server, caller, callee, factor):
    """What `callee` keeps of the tensors that `caller` gives it stays as it is, whatever comes after it.

    They are `factor` times what the caller gets.
    """
    kept = np.arange(5000)
    infer(server, caller, kept, f"{callee} keep")
    for add in range(1, 20):
        infer(server, caller, kept + add, callee)
    assert_array_equal(infer(server, callee, kept[:1], "check"), kept * factor)
