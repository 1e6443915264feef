"""Zarr and xarray, without what they warn of and users can do nothing about."""

import contextlib
import threading
import warnings
from collections.abc import Iterator

_ONE_AT_A_TIME = threading.RLock()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without Zarr's warnings of what its own version 3 leaves open.

    In one thread at a time: `warnings.catch_warnings` replaces the filters of the whole
    process, so of two threads one would undo what the other had set, and the last to
    leave would put back what the first had found.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(zarr|xarray)\.")
        warnings.filterwarnings("ignore", message=".*Zarr format 3 specification.*")
        # What xarray says of a store whose metadata nobody consolidated.
        warnings.filterwarnings("ignore", message="Failed to open Zarr store")
        yield
