"""Settings that hold for every test: devices, strictness, hypothesis profiles.

Half of the tests' time is compilation, so the workers of a run share compiled programs
by a folder, and the last lines say how many there were.
"""

import collections
import contextlib
import ctypes
import gc
import os
import re
import tempfile

PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")
THOROUGH, LEAST = PROFILE == "thorough", PROFILE == "least"
_flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
# Half of the tests' time is compilation, of which LLVM's optimisation is much. It is
# left out, unless the profile says otherwise or the flag is given: CI asks the laws of
# the oldest versions, and on the newest what may hang on it, of programs as users run
# them.
_level = "--xla_backend_optimization_level"
if not (THOROUGH or LEAST or _level in _flags):
    _flags += f" {_level}=0"
os.environ["XLA_FLAGS"] = _flags

# Set before the workers of pytest-xdist start, which take it over as the processes do
# that tests start. To keep programs between runs, give a folder by the same variable.
PROGRAMS = "JAX_COMPILATION_CACHE_DIR"
if PROGRAMS not in os.environ:
    _folder = tempfile.TemporaryDirectory(prefix="eqx_pipe-tests-")
    os.environ[PROGRAMS] = _folder.name  # removed when this process ends

# What sweeps remember of batch sizes belongs to the user, and not to tests.
_remembered = tempfile.TemporaryDirectory(prefix="eqx_pipe-tests-")
os.environ["XDG_CACHE_HOME"] = _remembered.name

import hypothesis  # noqa: E402
import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import jaxtyping  # noqa: E402
import pytest  # noqa: E402

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
hypothesis.settings.register_profile("dev", max_examples=4, **_common)
# What fails on purpose (planted bugs, what a strategy shrinks to) is not explained:
# that runs some hundred more examples, each of them traced line by line.
hypothesis.settings.register_profile(
    "ci",
    max_examples=4,
    derandomize=True,
    print_blob=True,
    phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
    **_common,
)
# Where the same was asked of other versions: the simplest example, and another one, and
# some of the cases of each table.
hypothesis.settings.register_profile(
    "least", hypothesis.settings.get_profile("ci"), max_examples=2
)
# Some 15,000 examples in all; tests with few inputs to draw from end earlier.
hypothesis.settings.register_profile("thorough", max_examples=250, **_common)
hypothesis.settings.load_profile(PROFILE)


_programs = collections.Counter()
"""How many programs were asked for in this process, and how many the folder had."""


def _count_program(event, *_, **__):
    # JAX sends the first one whether it compiled the program or found it.
    if event == "/jax/core/compile/backend_compile_duration":
        _programs["programs"] += 1
    elif event == "/jax/compilation_cache/cache_hits":
        _programs["found"] += 1


jax.monitoring.register_event_duration_secs_listener(_count_program)
jax.monitoring.register_event_listener(_count_program)


def pytest_runtest_teardown(item, nextitem):
    """What a file leaves (programs, above all) is not looked through for garbage again.

    In the end that is some GB in each worker.
    """
    if nextitem is None or nextitem.path != item.path:
        gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item, call):
    """Notes with a test how many examples hypothesis tried, and programs since."""
    text = getattr(item, "hypothesis_statistics", None)
    if call.when == "call" and text is not None:
        tried = re.findall(r"(\d+) passing(?: examples)?, (\d+) failing", text)
        count = sum(int(number) for pair in tried for number in pair)
        item.user_properties.append(("examples", count))
    if call.when == "teardown":
        item.user_properties.extend(_programs.items())
        _programs.clear()


def pytest_terminal_summary(terminalreporter):
    """The numbers in all; workers of pytest-xdist send theirs along."""
    counts = collections.defaultdict(list)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, value in report.user_properties:
                    counts[name].append(value)
    if counts["programs"]:
        asked, found = sum(counts["programs"]), sum(counts["found"])
        terminalreporter.write_line(
            f"programs: {asked - found} compiled, {found} more were compiled already"
        )
    if counts["examples"]:
        terminalreporter.write_line(
            f"hypothesis: {sum(counts['examples'])} examples in "
            f"{len(counts['examples'])} tests"
        )


def _is_client(path):
    return "clients" in path.parts


def pytest_ignore_collect(collection_path, config):
    """Importing other packages takes each worker ten seconds, and they are all slow."""
    if _is_client(collection_path) and config.option.markexpr == "not slow":
        return True
    return None


def _is_one_of(n, place):
    """Whether a case of a table is among those that are run; of three 0, 2, 5, 7, 10.

    Steps of the golden ratio have no period, so where tables are stacked each value of
    each has its turn.
    """
    return place * 0.6180339887 % 1 < 1 / n


def _most_cases(items):
    """Of each table, but for those of which the cases that are run are named."""
    cases = collections.defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            cases[item.nodeid.partition("[")[0]].append(item)
    left_out = []
    for table in cases.values():
        quick = [item for item in table if not item.get_closest_marker("slow")]
        named = len(quick) < len(table) and not table[0].get_closest_marker("one_of")
        if len(quick) > 2 and not named:
            left_out += [x for i, x in enumerate(quick) if not _is_one_of(5, i)]
    return left_out


def _is_left_out(item, place):
    """Whether a case of a table that `one_of` thins is run for `thorough` alone."""
    one_of = item.get_closest_marker("one_of")
    often, rest = one_of.args[0], one_of.kwargs.get("rest", 3)
    if place % often == 0:
        return False
    item.add_marker("slow")
    return not THOROUGH and not _is_one_of(rest, place - place // often - 1)


@pytest.hookimpl(tryfirst=True)  # before pytest asks which tests are slow
def pytest_collection_modifyitems(items, config):
    """Other packages' deprecations are theirs. Most cases of a large table are slow."""
    for item in filter(lambda item: _is_client(item.path), items):
        item.add_marker("slow")
        for kind in ("DeprecationWarning", "FutureWarning"):
            item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))
    seen, left_out = collections.Counter(), []
    for item in items:
        if item.get_closest_marker("one_of") is not None:
            test = item.nodeid.partition("[")[0]
            if _is_left_out(item, seen[test]):
                left_out.append(item)
            seen[test] += 1
    if LEAST:
        left_out += _most_cases(items)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(map(id, left_out))
        items[:] = [item for item in items if id(item) not in gone]


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


@pytest.fixture
def programs(monkeypatch):
    """What is compiled ahead of time, as by sweeps: each one's options, and itself."""
    found = []
    compile_ = jax.stages.Lowered.compile

    def compiled(lowered, compiler_options=None):
        found.append((compiler_options, compile_(lowered, compiler_options)))
        return found[-1][1]

    monkeypatch.setattr(jax.stages.Lowered, "compile", compiled)
    return found
