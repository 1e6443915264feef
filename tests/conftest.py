"""Settings for every test: devices, compilation, strictness, hypothesis profiles."""

import collections
import contextlib
import ctypes
import gc
import os
import tempfile
from pathlib import Path

import jaxlib.version

# A flag that jaxlib does not know ends the process, so the second is passed only to the
# versions that it was tried with. With one test process per core, threads inside a
# compilation cost more than they save.
_FLAGS = {"--xla_force_host_platform_device_count": "8"}
if jaxlib.version.__version_info__ < (0, 13):
    _FLAGS["--xla_cpu_parallel_codegen_split_count"] = "1"
# Compilation is half of the tests' time, and LLVM's optimisation a third of that. CI
# also runs the tests that could depend on it with level 3.
_FLAGS["--xla_backend_optimization_level"] = "0"
os.environ.setdefault("MPLBACKEND", "agg")  # draw no windows
_given = os.environ.get("XLA_FLAGS", "")
_added = [f"{name}={value}" for name, value in _FLAGS.items() if name not in _given]
os.environ["XLA_FLAGS"] = " ".join([_given, *_added])

# The workers of pytest-xdist, and processes that tests start, share compiled programs
# in this folder. Set the variable yourself to keep the programs between runs.
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
if PROGRAMS not in os.environ:
    _programs_folder = tempfile.TemporaryDirectory(prefix="eqx_pipe-tests-")
    os.environ[PROGRAMS] = _programs_folder.name  # removed when this process ends

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

CHECKED = "EQX_PIPE_CHECK_ANNOTATIONS"
if os.environ.get(CHECKED):
    # Checks every annotation of the package while the tests run, which costs a third
    # more time. `package/test_house.py` fails if the variable is set and this is off.
    jaxtyping.install_import_hook(
        "eqx_pipe",
        "beartype.beartype(conf=beartype.BeartypeConf(strategy=beartype.BeartypeStrategy.On))",
    )

jax.config.update("jax_compilation_cache_dir", os.environ[PROGRAMS])
for _option, _least in {
    "jax_persistent_cache_min_compile_time_secs": 0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}.items():
    jax.config.update(_option, _least)
    os.environ[_option.upper()] = str(_least)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

_common = {
    "deadline": None,  # the first example of a shape compiles
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
# Planted bugs fail on purpose. To explain each, hypothesis would run hundreds of
# examples, traced line by line.
hypothesis.settings.register_profile(
    "default",
    max_examples=4,
    derandomize=True,
    print_blob=True,
    phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
    **_common,
)
hypothesis.settings.register_profile("thorough", max_examples=250, **_common)
# `pytest --hypothesis-profile thorough` replaces it before the tests are collected.
hypothesis.settings.load_profile("default")


_counts = collections.Counter()
"""Programs that JAX asked for in this process, and those found in the shared folder."""


def _count_program(event, *_, **__):
    # JAX sends the first event both for programs that it compiles and that it finds.
    if event == "/jax/core/compile/backend_compile_duration":
        _counts["programs"] += 1
    elif event == "/jax/compilation_cache/cache_hits":
        _counts["found"] += 1


jax.monitoring.register_event_duration_secs_listener(_count_program)
jax.monitoring.register_event_listener(_count_program)


_MOST_BYTES = 2**30
"""The memory of a worker above which it forgets programs, at the end of a file."""


def pytest_runtest_teardown(item, nextitem):
    """Keep what a file leaves (mostly programs) out of memory, or of later collections.

    Programs that later files use again are found in the shared folder.
    """
    # JAX would raise the errors of failed programs in a later test.
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    if nextitem is None or nextitem.path != item.path:
        if _resident_bytes() > _MOST_BYTES:
            jax.clear_caches()
            gc.unfreeze()
            gc.collect()
            # The C library keeps freed memory, since it lies between other blocks.
            ctypes.CDLL(None).malloc_trim(0)
        gc.freeze()


def _resident_bytes():
    """Return the memory of this process; 0 if the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Attach the number of programs to each report, which workers send."""
    if call.when == "teardown":
        item.user_properties.extend(_counts.items())
        _counts.clear()


def pytest_terminal_summary(terminalreporter):
    """Print how many programs the run compiled."""
    total = collections.Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, count in report.user_properties:
                    total[name] += count if name in ("programs", "found") else 0
    compiled = total["programs"] - total["found"]
    terminalreporter.write_line(
        f"programs: {compiled} compiled, {total['found']} found in the shared folder"
    )


@pytest.fixture
def getkey():
    """Return a function that makes a new PRNG key at each call."""
    count = iter(range(10**9))
    return lambda: jr.key(next(count))


@pytest.fixture
def unchecked():
    """Switch annotation checks off, so that a wrong type reaches our own checks.

    Users meet those; the annotation checks of CI would answer first.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def programs(monkeypatch):
    """Record the options and result of each ahead-of-time compilation, as of sweeps."""
    found = []
    compile_ = jax.stages.Lowered.compile

    def compiled(lowered, compiler_options=None):
        found.append((compiler_options, compile_(lowered, compiler_options)))
        return found[-1][1]

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    return found
