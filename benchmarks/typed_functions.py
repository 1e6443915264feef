"""Of the annotated functions of other packages, how many does `given_typed` pass?

Each public function with an annotated array among its parameters is made a property
test as it stands, with no strategy given, and run on a few examples. `passes`: the
returned value satisfies its annotation. `in part`: so it does, and other examples are
refused in the function's own words; with `--strict` that is not allowed. `annotation`:
it does not. `raises`: the function was called, and raised. `not drawn`: no arguments
could be made, and the error says why. `raw error`: what came up in the kit itself is no
such error. Where a function is wrong and where its annotations say too little is for a
reader to tell: `--details` prints the first line of each error. Bare arrays have any
shape, or with `--shapes find` one that the function takes.
"""

import collections
import functools
import importlib
import inspect
import json
import pkgutil
import signal
import subprocess
import sys
import traceback
import warnings

import hypothesis
from hypothesis.errors import InvalidArgument, Unsatisfiable

import eqx_pipe.testing as ept

ROUNDS = 1
QUICK = {"packages": ("equinox",), "most": 3, "examples": 2}
SECONDS = 40  # of the processor, for one function: on numbers that nobody gives some
# loop without end.

_MARK = "verdict: "
_VERDICTS = (
    "passes",
    "in part",
    "annotation",
    "raises",
    "not drawn",
    "raw error",
    "too slow",
)


def functions_of(package):
    """By name, the public functions that say of some parameter that it is an array."""
    root = importlib.import_module(package)
    modules = [root]
    for found in pkgutil.walk_packages(getattr(root, "__path__", []), f"{package}."):
        if not any(part.startswith(("_", "test")) for part in found.name.split(".")):
            try:
                modules.append(importlib.import_module(found.name))
            except Exception:  # wants what is not installed
                continue
    named = {}
    for module in modules:
        for name, fn in vars(module).items():
            own = getattr(fn, "__module__", None) or ""
            if inspect.isfunction(fn) and own.partition(".")[0] == package:
                if not name.startswith("_") and _takes_arrays(fn):
                    named.setdefault(id(fn), (f"{module.__name__}.{name}", fn))
    return dict(sorted(named.values(), key=lambda pair: pair[0]))


def _takes_arrays(fn):
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (ValueError, TypeError):
        return False
    return any(
        hasattr(p.annotation, "dim_str") or "Array" in str(p.annotation)
        for p in parameters
    )


def verdict(fn, examples, shapes, strict):
    """How a function fares, and the first line of what it raised."""
    settings = hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    try:
        given = {"shapes": shapes or None, "refusals": () if strict else None}
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            settings(ept.given_typed(fn, **given))()
    except InvalidArgument as error:
        return "not drawn", error
    except Unsatisfiable as error:
        return "raises", error
    except Exception as error:
        if str(error).startswith("`eqx_pipe.testing.given_typed`"):
            return "annotation", error
        code = inspect.unwrap(fn).__code__
        frames = (frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
        return ("raises" if code in frames else "raw error"), error
    refused = [w.message for w in caught if " refuses arguments " in str(w.message)]
    return ("in part", refused[0]) if refused else ("passes", None)


def work(package, start, step, examples, shapes, strict):
    """In a process of its own: a line of JSON for each function."""
    warnings.simplefilter("ignore")
    for name, fn in list(functions_of(package).items())[start::step]:
        # Ends the process. Python would not come to a handler of its own within a
        # compiled program, and what others do on the machine does not count here.
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        found, error = verdict(fn, examples, shapes, strict)
        text = f"{type(error).__name__}: {error}" if error else ""
        line = json.dumps([name, found, " ".join(text.split())[:170]])
        print(f"\n{_MARK}{line}", flush=True)


def verdicts_of(package, step, examples, shapes, strict):
    """Verdicts by the names of functions.

    A loop without end in a compiled program can only be ended with its process, so the
    next function then begins another.
    """
    names = list(functions_of(package))[::step]
    found = {}
    while len(found) < len(names):
        given = (package, len(found) * step, step, examples, shapes, strict)
        code = f"from {__name__} import work; work(*{given})"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for line in process.stdout:
            if line.startswith(_MARK):
                name, what, text = json.loads(line.removeprefix(_MARK))
                found[name] = (what, text)
        process.wait()
        if len(found) < len(names):
            slow = process.returncode == -signal.SIGPROF
            why = f"not done in {SECONDS} s" if slow else "ended its process"
            found[names[len(found)]] = ("too slow", why)
    return found


def main(
    run,
    *,
    packages=("distreqx", "dm_pix", "equinox", "flowjax", "interpax"),
    most=60,
    examples=5,
    shapes="",
    strict=False,
    details=False,
):
    totals = collections.Counter()
    for package in run.chosen(packages):
        if not run.has(package):
            continue
        step = max(1, -(-len(functions_of(package)) // most))
        found = verdicts_of(package, step, examples, shapes, strict)
        counts = collections.Counter(what for what, _ in found.values())
        for name, (what, text) in found.items() if details else ():
            print(f"  {what:<10} {name}  {text}")
        run.row(case=package, functions=counts.total(), **_columns(counts))
        totals += counts
    run.row(case="all", functions=totals.total(), **_columns(totals))


_columns = functools.partial(
    lambda verdicts, counts: {v: counts[v] for v in verdicts}, _VERDICTS
)
