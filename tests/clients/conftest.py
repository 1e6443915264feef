"""Other packages, driven as their users drive them: all of these tests are slow."""

import jax
import pytest


def pytest_ignore_collect(config):
    """Without slow tests, skip even the imports: ten seconds in each worker."""
    return True if config.option.markexpr == "not slow" else None


def pytest_collection_modifyitems(items):
    """Mark the tests, and allow deprecation warnings, which are the packages' own."""
    for item in items:
        if "clients" in item.path.parts:
            item.add_marker("slow")
            for kind in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def default_promotion():
    """Run other packages without the strictness that our own code is tested with."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
