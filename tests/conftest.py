"""Settings that hold for every test: devices, strictness, hypothesis profiles."""

import contextlib
import ctypes
import gc
import os
import re

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
# Some 15,000 examples in all; tests with few inputs to draw from end earlier.
hypothesis.settings.register_profile("thorough", max_examples=250, **_common)
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
THOROUGH = PROFILE == "thorough"
hypothesis.settings.load_profile(PROFILE)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Notes with a test how many examples hypothesis tried."""
    text = getattr(item, "hypothesis_statistics", None)
    if call.when == "call" and text is not None:
        tried = re.findall(r"(\d+) passing(?: examples)?, (\d+) failing", text)
        count = sum(int(number) for pair in tried for number in pair)
        item.user_properties.append(("examples", count))


def pytest_terminal_summary(terminalreporter):
    """The number of examples in all; workers of pytest-xdist send theirs along."""
    counts = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == "examples"
    ]
    if counts:
        terminalreporter.write_line(
            f"hypothesis: {sum(counts)} examples in {len(counts)} tests"
        )


def _is_client(path):
    return "clients" in path.parts


def pytest_collection_modifyitems(items):
    """Other packages' deprecations are theirs."""
    for item in filter(lambda item: _is_client(item.path), items):
        for kind in ("DeprecationWarning", "FutureWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))


@pytest.fixture(autouse=True)
def as_users_have_it(request):
    """Programs of other packages run without the strictness asked of our own code."""
    with contextlib.ExitStack() as stack:
        if _is_client(request.path):
            stack.enter_context(jax.numpy_dtype_promotion("standard"))
            stack.enter_context(jax.numpy_rank_promotion("allow"))
        yield


@pytest.fixture(autouse=THOROUGH)
def released():
    """Gives back what hundreds of compiled programs take, some GB a test."""
    yield
    jax.clear_caches()
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL("libc.so.6").malloc_trim(0)


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
