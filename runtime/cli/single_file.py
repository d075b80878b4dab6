# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a model repository of one file: `pyruntime serve model.py`.

The repository has links to the user's folder, so that the model finds the modules beside its file, and a change of one
of them is a change of the model. Nothing else there is: it may be the server's own log, or a large environment.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from pyruntime.runtime.repository.scan import MODULES_ONLY
from pyruntime.runtime.settings import SettingsError

_SUFFIX = ".py"
_MODEL_FILE = "model.py"
_CONFIG = "config.pbtxt"


def replace_files(repositories: Iterable[str], resources: ExitStack) -> tuple[str, ...]:
    """The repositories, with one in place of each file of a model. `resources` removes what was made for that.

    Raises SettingsError if it cannot be made.
    """
    return tuple(
        _repository_of(Path(path).absolute(), resources) if path.endswith(_SUFFIX) and os.path.isfile(path) else path
        for path in repositories
    )


def _repository_of(file: Path, resources: ExitStack) -> str:
    try:
        root = Path(resources.enter_context(TemporaryDirectory(prefix="pyruntime-")))
        if file.parent.name.isdigit() and file.name == _MODEL_FILE:  # it lies in the folder of a model already
            model = file.parent.parent
            (root / model.name).symlink_to(model)
            return str(root)
        folder = root / (file.stem if file.name != _MODEL_FILE else file.parent.name)
        folder.mkdir()
        (folder / MODULES_ONLY).touch()
        (folder / "1").symlink_to(file.parent)
        config = file.parent / _CONFIG
        if config.is_file():
            (folder / _CONFIG).symlink_to(config)
        elif file.name != _MODEL_FILE:
            (folder / _CONFIG).write_text(f'backend: "python" default_model_filename: {json.dumps(file.name)}\n')
    except OSError as exc:
        raise SettingsError(f"no model repository can be made of '{file}': {exc.strerror}") from exc
    return str(root)
