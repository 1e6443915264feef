"""The jobs of `gpu`: `python -m benchmarks._gpu_jobs JOB [--quick]` runs one.

Each prints its rows as lines of JSON, as soon as they are known.
"""

import functools
import importlib.metadata
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqx_pipe as ep
from eqx_pipe._jaxprs import live_bytes

from . import _models, sweep_divergence
from ._report import Run, plain
from ._sides import Case, by_vmap, ours
from ._sweep_cases import cheap
from ._timing import quickest, seconds
from .gpu import JOBS

NEEDS = Path(__file__).parent / "requirements-gpu.txt"
FIXED = 8e-6
"""The seconds of a step of a loop on a GPU besides its lanes, from public reports."""
LAWS = "tests/package/test_gpu.py"


class Lines(Run):
    """A run whose rows are lines of JSON, for the process that started this one."""

    def row(self, **columns):
        row = {name: plain(value) for name, value in columns.items()}
        print(f"\n{json.dumps(row)}", flush=True)  # pytest leaves lines unfinished


def stat(name):
    """Return a number of the device's memory, 0 if it reports none."""
    return (jax.devices()[0].memory_stats() or {}).get(name, 0)


def card(run):
    """Print the device, the versions, and the packages that are not installed."""
    device, driver = jax.devices()[0], "none"
    if device.platform != "cpu":
        asked = "nvidia-smi --query-gpu=driver_version --format=csv,noheader"
        driver = subprocess.getoutput(asked).splitlines()[0]
    elif not run.quick:
        sys.exit("JAX finds no GPU here; --quick tries the command on a CPU")
    names = re.findall(r"^([\w-]+)", NEEDS.read_text(), re.MULTILINE)
    present = {dist.name.lower() for dist in importlib.metadata.distributions()}
    run.row(
        device=device.device_kind,
        driver=driver,
        memory_MiB=stat("bytes_limit") >> 20,
        versions={n: importlib.metadata.version(n) for n in names if n in present},
        missing=[n for n in names if n not in present],
    )


class Outcomes:
    """A plugin of pytest: a row for each difference and failure, and counts."""

    def __init__(self, run):
        self.run, self.end = run, time.monotonic() + JOBS[run.name][0] - 20
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def pytest_runtest_logreport(self, report):
        if report.when == "call" or not report.passed:
            self.counts[report.outcome] += 1
            row = {k: v for k, v in report.user_properties if k == "difference"}
            if report.failed:
                row |= {"error": " ".join(str(report.longrepr).split())[-200:]}
            if row:
                name = report.nodeid.rpartition("/")[2]
                self.run.row(case=name, kept=report.passed, **row)

    def pytest_runtest_teardown(self, item):
        if time.monotonic() > self.end:
            item.session.shouldstop = "no time is left"


def laws(run, *others):
    """Compare computations with the same on a CPU, or run other tests."""
    jax.config.update("jax_default_matmul_precision", "highest")
    outcomes, chosen = Outcomes(run), others or [LAWS, *["-kdraws"] * run.quick]
    # Warnings are errors in the tests; a GPU has some of its own.
    options = ["-q", "--tb=line", "-p", "no:cacheprovider", "-Wdefault", "-mgpu"]
    code = pytest.main([*options, *chosen], plugins=[outcomes])
    run.row(case="all", kept=code == 0, **outcomes.counts)


def tests(run):
    """Run the other tests that are marked `gpu`."""
    # Other files may need packages that are not installed.
    files = Path("tests/data" if run.quick else "tests").rglob("test_*.py")
    marked = [str(path) for path in files if "mark.gpu\n" in path.read_text()]
    laws(run, *marked, *["-kepochs"] * run.quick)


WEIGHTS = np.float32(np.sin(np.arange(1024)).reshape(32, 32) / 6)
BODIES = {
    "sine": (lambda x: x + 0.01 * jnp.sin(x), 1),
    "Runge-Kutta": (lambda x: _models.rk4(lambda u: jnp.sin(u[::-1]), x, 0.05), 2),
    "escape time": (lambda z: jnp.stack([z[0] ** 2 - z[1] ** 2, z[0] * z[1]]), 2),
    "random walk": (lambda x: x + jr.normal(jr.key(x[0].astype(int)), (3,)), 3),
    "recurrent": (lambda h: jnp.tanh(WEIGHTS @ h), 32),
    "heat": (lambda u: u + 0.1 * (jnp.roll(u, 1) - 2 * u + jnp.roll(u, -1)), 128),
}
"""The bodies of loops, with the length of their carry."""


def loop(body, width):
    """Return a function of a point: the number of steps, and the start."""

    def fn(p):
        start = 0, p["x"] * jnp.ones(width)
        step = lambda c: (c[0] + 1, body(c[1]))  # noqa: E731
        return jax.lax.while_loop(lambda c: c[0] < p["n"], step, start)[1].sum()

    return fn


def loops(run, some=False):
    """Fit the seconds of a step, fixed + lanes * each, and compare with the rule."""
    steps, most = (2, 10) if run.quick else (200, 20)
    big, add = jnp.zeros(2 ** (most + 7)), jax.jit(lambda x: x + 1)
    bandwidth = 2 * big.nbytes / quickest({0: lambda: add(big)})[0]
    fetch = big.nbytes / quickest({0: lambda: np.asarray(add(big))})[0]
    call_us = quickest({0: lambda: add(1.0)}, 20)[0] * 1e6
    rates = {"GB_per_s": bandwidth / 1e9, "fetched_GB_per_s": fetch / 1e9}
    run.row(case="device", call_us=call_us, **rates)
    for name in list(BODIES)[: 2 if some or run.quick else None]:
        fn, width = loop(*BODIES[name]), BODIES[name][1]
        program, times = jax.jit(jax.vmap(fn)), {}
        for lanes in (2**k for k in range(6, most + 1, 2)):
            points = {"n": jnp.full(lanes, steps), "x": jnp.linspace(0.1, 1, lanes)}
            call = functools.partial(program, points)
            times[lanes] = quickest({0: call})[0] / steps
        n, t = np.array([*times.items()]).T
        columns = np.stack([1 / t, n / t], 1)  # relative errors count alike
        fixed, each = np.linalg.lstsq(columns, np.ones(len(t)))[0].clip(1e-12)
        space = {"n": ep.Values([steps]), "x": ep.Linspace(0.1, 1, 2**30)}
        run.row(
            case=name,
            fixed_us=fixed * 1e6,
            each_ns=each * 1e9,
            # Lanes of which the fixed part is a sixth of a step, and those that take
            # at most 1.2 times as long, each, as the best.
            lanes_by_fit=round(5 * fixed / each),
            lanes_by_rule=round(5 * FIXED * bandwidth / (8 * width + 8)),
            lanes_enough=int(n[t / n <= 1.2 * min(t / n)].min()),
            lanes_auto=ep.plan(fn, space).batch_size,
            us=[round(x * 1e6, 3) for x in t],
        )


def order(run):
    """Compare batch sizes, `order_by` and `refill` for loops of unequal length."""
    run.only = ("sine",) if run.quick else ("sine", "diffrax")
    points, sizes = (64, (8,)) if run.quick else (2**17, (2**10, 2**14, 2**17))
    sweep_divergence.main(run, points=points, sizes=sizes)


def memory(run, name):
    """Compare the estimated memory of a batch with its peak, up to the largest."""
    model, many = getattr(_models, name), ep.Linspace(0.01, 1, 2**15)
    fn = jax.jit(lambda p: model(p, jr.key(0)))
    each = live_bytes(jax.make_jaxpr(fn)({"a": 0.5, "b": 0.5})) / 2**20
    run.row(case="auto", lanes=ep.plan(fn, {"a": many, "b": many}).batch_size)
    before = stat("bytes_in_use")
    for lanes in (16, 64) if run.quick else (2**k for k in range(12, 28, 2)):
        space = {"a": ep.Linspace(0.01, 1, lanes), "b": 0.5}
        call = functools.partial(ep.sweep, fn, space, batch_size=lanes)
        try:
            took = quickest({0: call}, 1)[0]
        except ep.SweepError as error:
            run.row(case="does not fit", lanes=lanes, error=str(error)[:200])
            break
        peak = (stat("peak_bytes_in_use") - before) / 2**20
        row = {"lanes": lanes, "peak_MiB": peak, "estimated_MiB": each * lanes}
        run.row(case="fits", **row, time=took)


def training(p):
    """Train an MLP on digits by gradient descent, and return the last loss."""
    from sklearn.datasets import load_digits

    x, y = (jnp.asarray(np.float32(a)) for a in load_digits(return_X_y=True))
    first, rest = jr.split(jr.key(p["seed"]))
    params, static = eqx.partition(eqx.nn.MLP(64, 10, 64, 2, key=first), eqx.is_array)

    def loss(params, key):
        rows = jr.randint(key, (128,), 0, len(x))
        out = jax.vmap(eqx.combine(params, static))(x[rows] / 16)
        return -(jax.nn.one_hot(y[rows], 10) * jax.nn.log_softmax(out)).sum(1).mean()

    def step(params, key):
        value, grads = jax.value_and_grad(loss)(params, key)
        return jax.tree.map(lambda w, g: w - p["rate"] * g, params, grads), value

    return jax.lax.scan(step, params, jr.split(rest, 300))[1][-1]


def beside(run, first_calls=False):
    """Compare sweeps with `vmap` by hand: first calls, with compilation, and others."""
    n, m, k = (1, 2, 10) if run.quick else (16, 316, 10**4)
    solver = sweep_divergence.by_diffrax()
    for case in (
        cheap()._replace(axes={"a": (0.01, 1.0, k), "b": (0.1, 0.9, k)}),
        Case("solver", solver, {"mu": (0.3, 5.0, m), "x": (0.5, 2.0, m)}),
        Case("training", training, {"rate": (0.01, 1.0, n), "seed": np.arange(4)}),
    ):
        sides = {"sweep": ours(case, "auto"), "vmap": by_vmap(case, None)}
        for side, call in sides.items():
            took = seconds(call, time.perf_counter)
            run.row(case=f"{case.name}: first call", side=side, time=took)
        if not first_calls:
            run.compare(f"{case.name}: {case.size():,} points", sides, "vmap")


if __name__ == "__main__":
    name, *argument = sys.argv[1].split(", ")
    globals()[name](Lines(name, "", 3, quick="--quick" in sys.argv), *argument)
