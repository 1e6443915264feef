"""What can be wrong with a store while it is filled, and what to do then."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..._errors import SweepError, message


def refuse_failed(path: Path, failed: np.ndarray) -> None:
    """Raises a `SweepError` if there are points in a store that have failed."""
    if not len(failed):
        return
    shown = ", ".join(map(str, failed[:5])) + (", ..." if len(failed) > 5 else "")
    what = f"point {shown}" if len(failed) == 1 else f"{len(failed):,} points ({shown})"
    raise SweepError(
        message(
            "sweep",
            f'the store `{path}` was filled with `on_error="isolate"`, and `fn` '
            f"failed at {what}.",
            'Go on with `on_error="isolate"`, which keeps the other points, or call '
            f"`fn(space.point({failed[0]}))` to see the error. "
            "A mended `fn` is another function, which needs another path.",
        ),
        failed.tolist(),
    )


@contextlib.contextmanager
def continuing(path: Path, what: str) -> Iterator[None]:
    """Says what to do when the disk does not do what it should."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        cure = "Make room there" if full else "See that the folder can be written to"
        raise SweepError(
            message(
                "sweep",
                f"the store `{path}` could not {what}: {error}.",
                f"{cure}, then call the same sweep again. Chunks that are finished are "
                "kept.",
            )
        ) from error
