"""What is said once per process, by the logger `eqx_pipe`.

Not by a warning: suites that turn warnings into errors would fail. Python shows what a
logger warns of unless told otherwise.
"""

import logging
import threading
from typing import Any

_log = logging.getLogger("eqx_pipe")
_lock = threading.Lock()
_said: set[str] = set()


def say_once(what: str, text: str, *args: Any) -> None:
    """Logs a warning, unless one about `what` was logged before."""
    with _lock:
        if what in _said:
            return
        _said.add(what)
    _log.warning(text + " (Said once.)", *args)
