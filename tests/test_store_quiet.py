"""Zarr's warnings stay away in every thread, and the user's filters as they were."""

import threading
import time
import warnings

import pytest

from eqx_pipe._store.quiet import quiet


def _warn() -> None:
    warnings.warn(
        "Consolidated metadata is not part in the Zarr format 3 specification.",
        stacklevel=1,
    )


def test_in_threads_that_come_and_go_together():
    before, errors = list(warnings.filters), []
    start = threading.Barrier(4)

    def one(pause: float) -> None:
        start.wait()
        try:
            for _ in range(10):
                with quiet():
                    time.sleep(pause)
                    _warn()
        except UserWarning as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(i / 1000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and list(warnings.filters) == before


def test_only_zarr_is_quiet_and_only_within():
    with quiet(), quiet():
        _warn()
        with pytest.raises(UserWarning, match="of the user"):
            warnings.warn("of the user", stacklevel=1)
    with pytest.raises(UserWarning, match="Consolidated"):
        _warn()
