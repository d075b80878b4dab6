# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a server for tests, without models and, unless a test gives them, without tasks and model control."""

from pyruntime.runtime.app.load_reports import LoadReports
from pyruntime.runtime.app.state import LentConnections, ServerState
from pyruntime.runtime.observe.log_settings import LogSettings
from pyruntime.runtime.observe.log_tail import LogTail
from pyruntime.runtime.observe.metrics import Metrics
from pyruntime.runtime.repository.lifecycle import LifecycleTable
from pyruntime.runtime.settings import ServerSettings
from pyruntime.runtime.tracing.tracer import Tracer


def new_state(settings=None, **parts):
    """A ServerState with these parts, and new ones in place of all others."""
    settings = settings or ServerSettings(("/models",))
    lent = LentConnections()
    metrics = Metrics()
    table = LifecycleTable(lent.recall)
    made = {
        "settings": settings,
        "tasks": None,
        "table": table,
        "control": None,
        "metrics": metrics,
        "tracer": Tracer(settings.trace, "1", lambda name: bool(table.ready_versions(name)), lent.recall),
        "log_settings": LogSettings(settings, lambda _: lent.recall()),
        "log_tail": LogTail(settings),
        "lent": lent,
        "settle": lambda: None,
        "load_reports": LoadReports(metrics, lambda: (None, None)),
    }
    return ServerState(**{**made, **parts})
