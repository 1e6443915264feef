"""The status of each point as an array that everybody can read.

What is true stands in the ledger. The array is written from it now and then: at the end
of each call, and while one goes on, so that somebody may watch it. It may lag behind,
and then says of a point that it is missing, though it is there.
"""

import contextlib
import os
import time

from .folder import LOCKS, Taken, lock
from .store import Store, root_of

_FILE = ".published"
"""The file in a store that says of what state of the ledger its status is."""

_PAUSE = 1.0
"""Seconds between two times at least."""

_SHARE = 0.02
"""How much of the time may go into it."""

_PATIENCE = 60.0
"""Seconds after which another process that holds the lock is taken to hang."""


def mark_current(store: Store) -> None:
    """Notes that the status of a store is that of its ledger."""
    aside = store.path / f"{_FILE}.{os.getpid()}"
    aside.write_text(store.ledger.digest())
    os.replace(aside, store.path / _FILE)


class Published:
    """The status array of a store that a process fills."""

    def __init__(self, store: Store, files: set[str]):
        self.store = store
        self._next = time.monotonic() + _PAUSE
        self._known, self._all = store.ledger.versions.copy(), False
        root = f"{store.status.path}/{root_of(store.status)}"
        names = store.chunks.coarse().names(root)
        self._all = not (self.is_current() and files.issuperset(names))

    def is_current(self) -> bool:
        """Whether the array says what the ledger says."""
        if self._all:
            return False
        try:
            said = (self.store.path / _FILE).read_text()
        except OSError:
            said = ""
        return said == self.store.ledger.digest()

    def now_and_then(self) -> None:
        """Writes it if it is time to, and nobody else does."""
        if time.monotonic() >= self._next:
            with contextlib.suppress(Taken):
                self._write()

    def finish(self) -> None:
        """Writes it, as nobody may do it after this process."""
        limit = time.monotonic() + _PATIENCE
        while time.monotonic() < limit:
            try:
                return self._write()
            except Taken:
                time.sleep(0.005)

    def _write(self) -> None:
        """Writes the parts in which something has changed.

        One process at a time, which first reads the logs of all: so what the last one
        writes holds what any has written before.
        """
        begun, store = time.monotonic(), self.store
        with lock(store.path / LOCKS / "status"):
            store.ledger.refresh()
            versions = store.ledger.versions
            changed = versions != self._known
            coarse = store.chunks.coarse()
            for number in range(len(coarse)):
                first, last = coarse.span(number)
                holds = store.chunks.holds
                if self._all or changed[holds(first) : holds(last - 1) + 1].any():
                    store.publish(number)
            mark_current(store)
            self._known, self._all = versions.copy(), False
        took = time.monotonic() - begun
        self._next = begun + took + max(_PAUSE, took / _SHARE)
