"""How long does a sweep take beside other libraries, and `shard_map` by hand?

The others: tvboptim, joblib, parajax, `vmap`, and on the small grid xyzpy,
xsweep and jax-grid-search. tvboptim and `shard_map` get their best batch size, found by
trying `--sizes`; joblib gets that of `shard_map`; "sweep, same", "sweep,
jitted" (the function under `jax.jit`, as all others have it) and "sweeper" (traced
once) that of tvboptim; "sweep" finds its own, and the defaults run as they come. Then
all run in turn; sides that are much slower take part in a few rounds only.
A side is slow that takes 1.5 times as long as "sweep", and 0.2 s.
"""

from ._sides import SIDES
from ._sweep_cases import CASES
from ._timing import agrees, quickest, ratio, seconds

DEVICES = "all"
QUICK = {"sizes": ("64",), "only": ("small",)}
SIZES = ("8", "64", "512", "1024", "4096", "16384", "all")


def best_setting(make, case, candidates, clock):
    """Return the quickest of some settings, and its side."""
    runs = {setting: make(case, setting) for setting in candidates}
    front = list(runs)
    if len(runs) > 1:
        front = list(quickest(runs, 2, clock))[:3]
        front = list(quickest({s: runs[s] for s in front}, 5, clock))
    return front[0], runs[front[0]]


def compare(run, case, sizes):
    reference = SIDES["vmap"].make(case, None)()
    chosen, runs = {}, {}
    for name, side in SIDES.items():
        if case.size() > side.most:
            continue
        if side.package is None or run.has(side.package):
            tried = side.settings(case, sizes, chosen)
            chosen[name], runs[name] = best_setting(side.make, case, tried, run.clock)
    once = {name: seconds(fn, run.clock) for name, fn in runs.items()}
    slow = {n for n, t in once.items() if t > max(0.2, 1.5 * once["sweep"])}

    def columns(name, times):
        row = {"over sweep, same": ratio(times, name, "sweep, same")}
        row |= {"setting": str(chosen[name] or "")}
        return row | {"right": str(agrees(runs[name](), reference))}

    title = f"{case.name}: {case.size():,}"
    run.compare(title, runs, to="sweep", seldom=slow, columns=columns)


def main(run, *, sizes=SIZES):
    for name in run.chosen(CASES):
        if name == "brain" and not run.has("tvboptim"):
            continue
        compare(run, CASES[name](), sizes)
