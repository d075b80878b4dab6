# SPDX-FileCopyrightText: The pyruntime authors
# SPDX-License-Identifier: Apache-2.0
"""Metrics and statistics of all models, read again and again while requests are measured."""

import http.client
import threading
import time

# Far more often than monitoring does, so that one request in a hundred meets a reading, and p99 shows it.
PAUSE_S = 0.05


class Scraper(threading.Thread):
    """Reads one server's metrics and statistics until it is told to end."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.targets = [(server.metrics, "/metrics"), (server.http, "/v2/models/stats")]
        self.readings, self.cpu_s, self.problem = 0, 0.0, None
        self._done = threading.Event()

    def run(self):
        connections = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for port, _ in self.targets]
        try:
            while not self._done.wait(PAUSE_S):
                for connection, (_, path) in zip(connections, self.targets):
                    connection.request("GET", path)
                    response = connection.getresponse()
                    response.read()
                    if response.status != 200:
                        self.problem = f"{path} answered {response.status}"
                        return
                self.readings += 1
        except (OSError, http.client.HTTPException) as e:
            self.problem = repr(e)
        finally:
            self.cpu_s = time.thread_time()
            for connection in connections:
                connection.close()

    def end(self):
        """What went wrong, or None."""
        self._done.set()
        self.join()
        return self.problem or (None if self.readings else "metrics and statistics were not read once")
