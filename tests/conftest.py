"""Settings for every test: devices, compilation, strictness, hypothesis profiles."""

import collections
import contextlib
import ctypes
import gc
import os
import signal
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

# Compiled programs are kept between runs, in a folder that all checkouts and versions
# of JAX share: a file's name has a checksum of the program, of jaxlib's version, its
# flags and the processor. The workers of pytest-xdist, and processes that tests start,
# use it too. Set the variable to another folder to begin with an empty one.
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
_own_folder = None
if PROGRAMS not in os.environ:
    _cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    _own_folder = Path(_cache, "eqx_pipe-tests")
    try:
        _own_folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        _temporary = tempfile.TemporaryDirectory(prefix="eqx_pipe-tests-")
        _own_folder = Path(_temporary.name)  # removed when this process ends
    os.environ[PROGRAMS] = str(_own_folder)

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


_MOST_BYTES, _GROWN_BYTES = 2**30, 2**28
"""A worker forgets programs when it has more memory than the first, and the second more
than it had after it forgot them the last time: much is held by modules."""

_kept_bytes = 0


def pytest_runtest_teardown(item, nextitem):
    """Keep what tests leave (mostly programs) out of memory, or of later collections.

    Programs that later tests use again are found in the shared folder.
    """
    global _kept_bytes
    # JAX would raise the errors of failed programs in a later test.
    with contextlib.suppress(Exception):
        jax.effects_barrier()
    is_full = _resident_bytes() > max(_MOST_BYTES, _kept_bytes + _GROWN_BYTES)
    if is_full:
        # Not imported above, where its annotations would not be checked.
        from eqx_pipe._cache import PROGRAMS as kept

        kept._entries.clear()
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        # The C library keeps freed memory, since it lies between other blocks.
        ctypes.CDLL(None).malloc_trim(0)
        _kept_bytes = _resident_bytes()
    if is_full or nextitem is None or nextitem.path != item.path:
        gc.freeze()


def _resident_bytes():
    """Return the memory of this process; 0 if the system does not tell."""
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


ENDED = {128 + signal.SIGTERM, 128 + getattr(signal, "SIGHUP", signal.SIGTERM)}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Attach the number of programs to each report, which workers send.

    A sweep with a store ends by SystemExit when a signal ends the process. For pytest
    that is a test that failed, and it would go on.
    """
    error = call.excinfo and call.excinfo.value
    if isinstance(error, SystemExit) and error.code in ENDED:
        item.session.shouldstop = "a signal ended a sweep"
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


_FOLDER_BYTES = 2**29
"""The size of the folder of programs above which its oldest half is removed."""


def pytest_sessionfinish():
    """Bound the folder of programs; workers, and runs with a given one, have none.

    JAX has an option for it, which reads the age of each file for each file it writes.
    """
    if _own_folder is None:
        return
    found = []
    for file in os.scandir(_own_folder):
        with contextlib.suppress(FileNotFoundError):  # another run removed it
            about = file.stat()
            used = max(about.st_atime_ns, about.st_mtime_ns)
            # A process that is killed may leave an empty file, and JAX replaces none.
            found.append((used if about.st_size else 0, about.st_size, file.path))
    total = left = sum(size for _, size, _ in found)
    for used, size, path in sorted(found):
        if used and (total <= _FOLDER_BYTES or left <= _FOLDER_BYTES // 2):
            break
        left -= size
        Path(path).unlink(missing_ok=True)


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
