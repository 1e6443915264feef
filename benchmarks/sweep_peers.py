"""Sweeps by this library, by hand, and by others: time, compilations, memory.

First tvboptim and `shard_map` get their best batch size, found by trying; `lax.map` and
joblib get the one of `shard_map`; `sweep` and "tvboptim, default" run as they come, and
"sweep, same" with the size that is best for tvboptim; so does "sweep, jitted", with the
function under `jax.jit`, as all others have it. Then all run in turn, and every one is
compared with what each of ours took in the same round; sides that are much slower take
part in a few rounds only. Peak memory is that of a process that does nothing else. Run:
`python benchmarks/sweep_peers.py [case ...]`, with `pip install 'eqx_pipe[bench]'`. In
the environment `DEVICES=1` changes their number, `SIZES=8,64,all` the batch sizes that
are tried, `BEST=1` leaves out all but ours and the sides at their best (then `FEWER=8`
takes an eighth of the points), and `MEMORY=1` adds the peak memory.
"""

import os
import resource
import subprocess
import sys
import time

os.environ["XLA_FLAGS"] = (
    f"--xla_force_host_platform_device_count={os.environ.get('DEVICES', 2)}"
)

import json
import statistics

import jax
import jax.numpy as jnp
import numpy as np
from peer_cases import CASES
from peers import SIDES

ROUNDS = 21
OURS = "sweep", "sweep, same", "sweep, jitted"
SLOW = 1.5
"""A side slower than ours by more than that takes part in a few rounds only."""
compilations = [0]
jax.monitoring.register_event_duration_secs_listener(
    lambda event, *_, **__: compilations.__setitem__(
        0, compilations[0] + event.endswith("backend_compile_duration")
    )
)


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def best_setting(make, case, candidates):
    """The quickest of some settings, and how it runs."""
    if len(candidates) == 1:
        run = make(case, candidates[0])
        run()
        return candidates[0], run
    found = {}
    for setting in candidates:
        run = make(case, setting)
        run()
        first = seconds(run)
        least = min((t for t, _ in found.values()), default=first)
        if first < 2 * least:
            found[setting] = min(first, seconds(run)), run
    front = sorted(found, key=lambda s: found[s][0])[:3]
    times = {s: [] for s in front}
    for _ in range(5):
        for s in front:
            times[s].append(seconds(found[s][1]))
    best = min(front, key=lambda s: statistics.median(times[s]))
    return best, found[best][1]


def agrees(result, reference):
    """Whether a side's values are right, however its leading axes are split."""
    return all(
        np.allclose(
            np.reshape(leaf, (-1, *right.shape[1:]))[: len(right)],
            right,
            rtol=1e-3,
            atol=1e-4,
        )
        for leaf, right in zip(jax.tree.leaves(result), reference, strict=True)
    )


def again(make, case, setting):
    """What a new function that does the same and other values of axes cost."""
    axes = {
        k: (v[0] * 1.01, v[1], v[2]) if isinstance(v, tuple) else v
        for k, v in case.axes.items()
    }
    fn = case.fn
    other = case._replace(fn=lambda p: fn(p), axes=axes)
    before = compilations[0]
    took = seconds(lambda: make(other, setting)())
    return compilations[0] - before, took


def peak(name, side, setting):
    """The peak memory of a process that runs one side three times, in MiB."""
    args = [name, side, json.dumps(setting)]
    command = [sys.executable, __file__, "--one", *args]
    out = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(out.stdout.split()[-1])


def one(name, side, setting):
    setting = json.loads(setting)
    case = CASES[name]()
    run = SIDES[side][0](case, tuple(setting) if type(setting) is list else setting)
    for _ in range(3):
        run()
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(own / 1024)


def fewer(case, times):
    """A case with the first axis so many times shorter."""
    first = next(iter(case.axes))
    lo, hi, n = case.axes[first]
    return case._replace(axes={**case.axes, first: (lo, hi, n // times)})


def compare(name):
    case = CASES[name]()
    if os.environ.get("BEST"):
        case = fewer(case, int(os.environ.get("FEWER", 1)))
    size = case.size()
    print(f"{name}: {case_doc(name)} {size:,} points", flush=True)
    reference = [np.asarray(v) for v in jax.tree.leaves(SIDES["vmap"][0](case, None)())]
    sides = SIDES
    if os.environ.get("BEST"):
        sides = {k: v for k, v in SIDES.items() if k in OURS or k.endswith("best")}
    chosen, runs, right = {}, {}, {}
    for side, (make, candidates) in sides.items():
        tried = candidates(case, chosen)
        chosen[side], runs[side] = best_setting(make, case, tried)
        right[side] = agrees(runs[side](), reference)
    once = {side: seconds(run) for side, run in runs.items()}
    slow = {side for side, t in once.items() if t > SLOW * once["sweep"] and t > 0.2}
    slow |= {"vmap", "tvboptim, default"} & {s for s, t in once.items() if t > 0.2}
    times = {side: [] for side in runs}
    for i in range(ROUNDS):
        for side, run in runs.items():
            if side not in slow or i % 10 == 0:
                times[side].append(seconds(run))
            else:
                times[side].append(None)
    for side, (make, _) in sides.items():
        own = [t for t in times[side] if t is not None]
        beside = "".join(ratio(times[side], times[own]) for own in OURS)
        count, fresh = again(make, case, chosen[side])
        memory = peak(name, side, chosen[side]) if os.environ.get("MEMORY") else None
        print(
            f"  {side:18s}{_shown(chosen[side]):>17s}"
            f"{statistics.median(own) * 1e3:9.2f} ms{beside}"
            f"{count:5d}{fresh * 1e3:8.0f} ms"
            + (f"{memory:7.0f} MiB" if memory else "")
            + ("" if right[side] else "   WRONG"),
            flush=True,
        )


def ratio(times, ours):
    """The median of the ratios of times in the same round, and its deviation."""
    ratios = [t / own for t, own in zip(times, ours, strict=True) if t]
    middle = statistics.median(ratios)
    return f"{middle:8.2f} ({statistics.median(abs(r - middle) for r in ratios):.2f})"


def _shown(setting):
    if setting is None:
        return ""
    return " ".join(map(str, setting)) if isinstance(setting, tuple) else str(setting)


def case_doc(name):
    return " ".join((CASES[name].__doc__ or "").split())


def main():
    print(
        f"jax {jax.__version__}, {jax.device_count()} devices; {jnp.float32.__name__}"
    )
    print(f"side, setting, time, times {OURS} (MAD); compilations and time when new")
    for name in sys.argv[1:] or CASES:
        compare(name)


if __name__ == "__main__":
    one(*sys.argv[2:]) if sys.argv[1:2] == ["--one"] else main()
