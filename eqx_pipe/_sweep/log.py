"""Warnings that are logged once per process, by the logger `eqx_pipe`.

Not Python warnings: test suites that turn these into errors would fail. Python shows
what a logger warns of unless told otherwise.
"""

import logging
import threading
from typing import Any

_log = logging.getLogger("eqx_pipe")
_lock = threading.Lock()
_logged: set[str] = set()


def log_once(subject: str, text: str, *args: Any) -> None:
    """Logs a warning, unless one about `subject` was logged before."""
    with _lock:
        if subject in _logged:
            return
        _logged.add(subject)
    _log.warning(text + " (Said once.)", *args)
