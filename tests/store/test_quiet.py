"""Zarr's warnings stay away in every thread, and the user's filters as they were."""

import threading
import time
import warnings

import pytest

from eqx_pipe._sweep.store import quiet_zarr


def _warn() -> None:
    warnings.warn(
        "Consolidated metadata is not part in the Zarr format 3 specification.",
        stacklevel=1,
    )


def test_in_threads_that_come_and_go_together():
    before, errors = list(warnings.filters), []
    first_is_in = threading.Event()

    def first() -> None:
        with quiet_zarr():
            first_is_in.set()
            time.sleep(0.1)  # time for the second to come in, if it may

    def second() -> None:
        first_is_in.wait()
        try:
            with quiet_zarr():
                one.join()
                _warn()
        except UserWarning as error:
            errors.append(error)

    one, two = threading.Thread(target=first), threading.Thread(target=second)
    one.start(), two.start()
    two.join()
    assert not errors and list(warnings.filters) == before


def test_only_zarr_is_quiet_and_only_within():
    with quiet_zarr(), quiet_zarr():
        _warn()
        with pytest.raises(UserWarning, match="of the user"):
            warnings.warn("of the user", stacklevel=1)
    with pytest.raises(UserWarning, match="Consolidated"):
        _warn()
