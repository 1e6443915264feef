"""How long does a sweep take beside other libraries, and `shard_map` by hand?

The others: tvboptim, joblib, parajax, `lax.map`, `vmap`, and on the small grid xyzpy,
xsweep and jax-grid-search. tvboptim and `shard_map` get their best batch size, found by
trying `--sizes`; `lax.map` and joblib get that of `shard_map`; "sweep, same", "sweep,
jitted" (the function under `jax.jit`, as all others have it) and "sweeper" (traced
once) that of tvboptim; "sweep" finds its own, and the defaults run as they come. Then
all run in turn; sides that are much slower take part in a few rounds only. "New" is a
new function that does the same, with other values of axes: programs compiled, and time.

`--best` leaves out all but ours and the sides at their best; `--fewer 8` takes an
eighth of the points. A side is slow that takes 1.5 times as long as "sweep", and 0.2 s.
"""

import time

import jax

from ._sides import SIDES
from ._sweep_cases import CASES
from ._timing import agrees, quickest, ratio, seconds

DEVICES = "all"
QUICK = {"sizes": ("64",), "only": ("small",)}
SIZES = ("8", "64", "512", "1024", "4096", "16384", "all")
BEST = ("sweep", "sweep, same", "sweep, jitted", "sweeper", "tvboptim", "shard_map")
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: (
        compiled.append(event) if event.endswith("backend_compile_duration") else None
    )
)


def best_setting(make, case, candidates, clock):
    """The quickest of some settings, and how it runs."""
    runs = {setting: make(case, setting) for setting in candidates}
    front = list(runs)
    if len(runs) > 1:
        front = list(quickest(runs, 2, clock))[:3]
        front = list(quickest({s: runs[s] for s in front}, 5, clock))
    return front[0], runs[front[0]]


def new(make, case, setting):
    """What a new function that does the same and other values of axes cost."""
    axes = {
        k: (v[0] * 1.01, v[1], v[2]) if isinstance(v, tuple) else v
        for k, v in case.axes.items()
    }
    other = case._replace(fn=lambda p: case.fn(p), axes=axes)
    before = len(compiled)
    took = seconds(make(other, setting), time.perf_counter)
    return {"new compiles": len(compiled) - before, "time new": took}


def shorter(case, times):
    """A case with the first axis so many times shorter."""
    first = next(iter(case.axes))
    lo, hi, n = case.axes[first]
    return case._replace(axes={**case.axes, first: (lo, hi, n // times)})


def compare(run, case, sizes, best):
    reference = SIDES["vmap"].make(case, None)()
    chosen, runs = {}, {}
    for name, side in SIDES.items():
        if (best and name not in BEST) or case.size() > side.most:
            continue
        if side.package is None or run.has(side.package):
            tried = side.settings(case, sizes, chosen)
            chosen[name], runs[name] = best_setting(side.make, case, tried, run.clock)
    once = {name: seconds(fn, run.clock) for name, fn in runs.items()}
    slow = {n for n, t in once.items() if t > max(0.2, 1.5 * once["sweep"])}

    def columns(name, times):
        row = {"over sweep, same": ratio(times, name, "sweep, same")}
        row |= {"setting": str(chosen[name] or "")}
        row |= new(SIDES[name].make, case, chosen[name])
        return row | {"right": str(agrees(runs[name](), reference))}

    title = f"{case.name}: {case.size():,}"
    run.compare(title, runs, to="sweep", seldom=slow, columns=columns)


def main(run, *, sizes=SIZES, best=False, fewer=1):
    for name in run.chosen(CASES):
        if name == "brain" and not run.has("tvboptim"):
            continue
        compare(run, shorter(CASES[name](), fewer), sizes, best)
