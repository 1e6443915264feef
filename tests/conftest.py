"""Settings that hold for every test: devices, strictness, hypothesis profiles."""

import os

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

_common = {
    "deadline": None,  # the first example of a shape compiles
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("dev", max_examples=8, **_common)
hypothesis.settings.register_profile(
    "ci", max_examples=8, derandomize=True, print_blob=True, **_common
)
hypothesis.settings.register_profile("thorough", max_examples=400, **_common)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def getkey():
    """A function that gives another PRNG key at each call."""
    count = iter(range(10**9))
    return lambda: jr.key(next(count))


@pytest.fixture
def unchecked():
    """Switches the runtime type checks off, so that our own messages are seen.

    The checks answer a wrong Python type before the library's own checks, which are
    what users meet, can.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
