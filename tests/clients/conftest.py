"""Programs of other packages: without the strictness that we ask of our own code."""

import jax
import pytest

HERE = "tests/clients/"


def pytest_collection_modifyitems(items):
    """Other packages' deprecations are theirs; an error of ours is still one."""
    for item in items:
        if HERE in item.nodeid or "clients" in item.path.parts:
            for kind in ("DeprecationWarning", "FutureWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def as_users_have_it():
    """JAX's own defaults for promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
