"""What pytest finds of `eqx_pipe`: a fixture.

This file lies outside of the package, and imports neither it nor JAX before a test asks
for the fixture.
"""

import pytest


@pytest.fixture(name="assert_compiles")
def _assert_compiles():
    """`eqx_pipe.testing.assert_compiles`, without an import."""
    from eqx_pipe.testing import assert_compiles

    return assert_compiles
