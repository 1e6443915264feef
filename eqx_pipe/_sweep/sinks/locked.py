"""Who may write to a store: one process, or several with a share each; or one that has
it grow.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from ..._errors import SweepError, message
from ..._store.folder import LOCKS, Taken, lock
from ..._store.layout import generation_of
from ..._store.ledger import WHOLE
from ..._store.store import Store
from .fingerprint import continuing

_GROWING = "grow"
"""The lock of a process that has a store grow."""


def share(part: tuple[int, int] | None) -> str:
    """The name of a process's share, for its lock and its log."""
    return WHOLE if part is None else f"part-{part[0]}-of-{part[1]}"


@contextlib.contextmanager
def locked(path: Path, part: tuple[int, int] | None) -> Iterator[None]:
    """Holds the share for this process, and the whole store if it is not divided."""
    folder = path / LOCKS
    what = "the store"
    try:
        with contextlib.ExitStack() as stack:
            with continuing(path, "be locked"):
                # Shared by those with a part, so that nobody has the whole meanwhile.
                stack.enter_context(lock(folder / WHOLE, shared=part is not None))
                if part is not None:
                    what = f"part {part[0]} of {part[1]} of the store"
                    stack.enter_context(lock(folder / share(part)))
            yield
    except Taken as taken:
        raise SweepError(
            message(
                "sweep",
                f"{what} `{path}` is being filled by {taken}.",
                "Wait for it or stop it; processes that fill one store together "
                "each take their own `shard=(index, count)`.",
            )
        ) from None


@contextlib.contextmanager
def growing(path: Path) -> Iterator[None]:
    """Waits until no other process has the store grow, and keeps others from it."""
    pause = 0.01
    while True:
        try:
            with contextlib.ExitStack() as stack:
                with continuing(path, "be locked"):
                    stack.enter_context(lock(path / LOCKS / _GROWING))
                yield
                return
        except Taken:
            time.sleep(pause)
            pause = min(2 * pause, 0.5)


def check_current(store: Store) -> None:
    """Raises a `SweepError` if a store has grown since it was opened."""
    if generation_of(store.path) != store.record["generation"]:
        raise SweepError(
            message(
                "sweep",
                f"another process has had the store `{store.path}` grow since this one "
                "opened it.",
                "Call the sweep of the larger space, which has these points too.",
            )
        )
