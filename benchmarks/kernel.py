"""How fast does `ep.kernel` run loops of arithmetic, compared with other sweeps and C?

Processor time of one device. The other ways are batches of a size that the library
chooses and small ones, `order_by` where the points' costs are known, and `refill`. They
run in processes of their own for each of XLA's instruction sets (AVX2, or all that the
processor has), since that is an option of a process; a kernel always uses all. Compare
it with the better of both. C is compiled by gcc, if it is there, with `-O3
-march=native`, and also with `-ffast-math`.

With `--devices 2` it compares the kernels on one device with those on all instead, by
the clock on the wall.
"""

import contextlib
import ctypes
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqx_pipe as ep

from . import _models

ROUNDS = 7
QUICK = {"points": 128, "instructions": "all", "only": ("lorenz, tuple", "collatz")}
MODELS = (
    "runge_kutta divergent euler_maruyama walk heat collatz pendulum powers adaptive "
    "bodies reactions kalman"
).split()
"""The models whose loops are arithmetic of few numbers."""


def lorenz(rho, stacked):
    """Return the end of 1,000 steps, whose carry is a tuple or an array."""

    def slope(c):
        x, y, z = c
        out = 10 * (y - x), x * (rho - z) - y, x * y - 8 / 3 * z
        return jnp.stack(out) if stacked else out

    def after(c, k, h):
        return jax.tree.map(lambda u, v: u + h * v, c, k)

    def step(_, c):
        a = slope(c)
        b = slope(after(c, a, 0.005))
        d = slope(after(c, b, 0.005))
        e = slope(after(c, d, 0.01))
        total = jax.tree.map(lambda a, b, d, e: a + 2 * b + 2 * d + e, a, b, d, e)
        return after(c, total, 0.01 / 6)

    start = jnp.array([1.0, 0.0, 0.0])
    start = start if stacked else tuple(start)
    return jnp.stack([*jax.lax.fori_loop(0, 1000, step, start)])


_A = (
    (), (1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
)  # fmt: skip
_B = (35 / 384, 0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84)
_E = (71 / 57600, 0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)


def van_der_pol(mu):
    """Van der Pol's oscillator until 20, by Dormand and Prince's method."""

    def slope(y):
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def weighted(weights, slopes):
        zero = jnp.zeros(2)
        return sum((w * k for w, k in zip(weights, slopes, strict=True)), zero)

    def step(c):
        t, y, h, n = c
        h = jnp.minimum(h, 20 - t)
        slopes = []
        for weights in _A:
            slopes.append(slope(y + h * weighted(weights, slopes)))
        new = y + h * weighted(_B, slopes)
        error = h * weighted(_E, [*slopes, slope(new)])
        scale = 1e-4 + 1e-4 * jnp.maximum(jnp.abs(y), jnp.abs(new))
        error = jnp.sqrt(jnp.mean((error / scale) ** 2))
        keep = error <= 1
        factor = jnp.clip(0.9 * jnp.maximum(error, 1e-10) ** -0.2, 0.2, 10.0)
        return jnp.where(keep, t + h, t), jnp.where(keep, new, y), h * factor, n + 1

    start = jnp.float32(0), jnp.array([2.0, 0.0]), jnp.float32(0.01), 0
    going = lambda c: (c[0] < 20 * (1 - 1e-6)) & (c[3] < 100_000)  # noqa: E731
    return jax.lax.while_loop(going, step, start)[1]


def by_diffrax(solver, saves=0):
    """Return the same by diffrax, which saves `saves` times or the end."""
    import diffrax

    def slope(t, y, mu):
        return jnp.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    times = (
        diffrax.SaveAt(ts=jnp.linspace(0, 20, saves))
        if saves
        else diffrax.SaveAt(t1=True)
    )
    return lambda mu: diffrax.diffeqsolve(
        diffrax.ODETerm(slope), getattr(diffrax, solver)(), 0.0, 20.0, 0.01,
        jnp.array([2.0, 0.0]), mu, saveat=times, max_steps=100_000, throw=False,
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-4),
        adjoint=diffrax.ForwardMode(),
    ).ys  # fmt: skip


def pi(seed):
    """Estimate pi by 200 pairs of random numbers."""
    key = jr.key(seed)

    def step(i, inside):
        u = jr.uniform(jr.fold_in(key, i), (2,))
        return inside + jnp.where(u @ u < 1, 1, 0)

    return 4 * jax.lax.fori_loop(0, 200, step, 0) / 200


def ornstein_uhlenbeck(seed):
    """Return the end of a random walk that is drawn to zero."""

    def step(_, c):
        x, key = c
        key, now = jr.split(key)
        return x - 0.01 * x + 0.1 * jr.normal(now), key

    return jax.lax.fori_loop(0, 100, step, (jnp.float32(1), jr.key(seed)))[0]


def escape(c):
    """Count the steps until a point of the complex plane escapes (Mandelbrot)."""

    def step(s):
        x, y, n = s
        return x * x - y * y + c, 2 * x * y + 0.3, n + 1

    inside = lambda s: (s[0] ** 2 + s[1] ** 2 < 4) & (s[2] < 1000)  # noqa: E731
    return jax.lax.while_loop(inside, step, (0 * c, 0 * c, 0))[2]


def cases(points):
    """Yield each case: a function, its points, and what tells their cost, if known."""
    rng = np.random.default_rng(0)
    uniform = lambda low, high: np.float32(rng.uniform(low, high, points))  # noqa: E731
    seeds, mu = np.arange(points, dtype=np.int32), uniform(0.5, 20)
    yield "lorenz, tuple", lambda p: lorenz(p, False), uniform(0, 21), False
    yield "lorenz, stacked", lambda p: lorenz(p, True), uniform(0, 21), False
    yield "van der pol", van_der_pol, mu, True
    for solver, saves in (("Tsit5", 0), ("Tsit5", 8), ("Dopri5", 0)):
        name = f"diffrax {solver}" + (f", {saves} saves" if saves else "")
        yield name, by_diffrax(solver, saves), mu, True
    yield "monte carlo pi", pi, seeds, False
    yield "ornstein-uhlenbeck", ornstein_uhlenbeck, seeds, False
    yield "escape time", escape, uniform(-1, 0.5), False
    for name in MODELS:
        model = getattr(_models, name)
        size = min(2 * points, _models.POINTS[model])
        a, b = np.float32(rng.uniform([[0.01], [0.1]], [[1], [0.9]], (2, size)))
        columns = {"a": a, "b": b, "seed": np.arange(size, dtype=np.int32)}
        yield name, lambda p, f=model: f(p, jr.key(p["seed"])), columns, False


def compiled_c(folder, *flags):
    """Return Lorenz' equations in C, or `None` without gcc."""
    library = Path(folder) / f"lorenz{len(flags)}.so"
    source = Path(__file__).with_name("_lorenz.c")
    command = [
        "gcc",
        "-O3",
        "-march=native",
        "-fopenmp-simd",
        "-shared",
        "-fPIC",
        *flags,
    ]
    try:
        subprocess.run([*command, "-o", library, source], check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    lorenz_of = ctypes.CDLL(str(library)).lorenz

    def run(rho):
        out = np.empty((len(rho), 3), np.float32)
        places = [ctypes.c_void_p(x.ctypes.data) for x in (rho, out)]
        lorenz_of(*places, ctypes.c_long(len(rho)), ctypes.c_long(1000))
        return out

    return run


def ways(fn, columns, known_cost):
    """Return each way as a call."""
    named = columns if isinstance(columns, dict) else {"p": columns}
    space = ep.Space({k: ep.Values(v) for k, v in named.items()}, "zip")
    of = fn if isinstance(columns, dict) else lambda point: fn(point["p"])

    def sweeper(f, **options):
        made = ep.sweeper(f, space, **options)
        return lambda: made(space).values

    def sorted_sweep():
        return ep.sweep(of, space, order_by=lambda point: point["p"]).values

    found = {"kernel": sweeper(ep.kernel(of)), "auto": sweeper(of)}
    for size in (16, 64, 256):
        found[f"batches of {size}"] = sweeper(of, batch_size=size)
    with contextlib.suppress(ValueError):  # without a loop of unknown length
        found["refill"] = sweeper(ep.refill(of))
    if known_cost:
        found["order_by"] = sorted_sweep
    return found


def on_devices(fn, columns):
    """Return a kernel on one device and on all, as calls."""
    space = {"p": ep.Values(columns)}
    one = jax.sharding.Mesh(jax.devices()[:1], "device")
    made = {"one device": one, "all devices": None}
    for name, mesh in made.items():
        sweeper = ep.sweeper(ep.kernel(lambda point: fn(point["p"])), space, mesh=mesh)
        made[name] = functools.partial(sweeper, space)
    return made


def main(run, *, points=16_384, instructions="both"):
    if jax.device_count() > 1:
        for case, fn, columns, _ in cases(points):
            if run.chosen([case]) and not isinstance(columns, dict):
                run.compare(case, on_devices(fn, columns), to="all devices")
        return
    if instructions == "both":
        _in_processes(run, points)
        return
    run.clock = time.process_time
    with tempfile.TemporaryDirectory() as folder:
        for case, fn, columns, known_cost in cases(points):
            if not run.chosen([case]):
                continue
            sides = ways(fn, columns, known_cost)
            for flags in ((), ("-ffast-math",)) if case.startswith("lorenz") else ():
                in_c = compiled_c(folder, *flags)
                if in_c is not None:
                    name = f"C, {flags[0][2:]}" if flags else "C"
                    sides[name] = lambda in_c=in_c: in_c(columns)  # noqa: B023
            run.compare(f"{case} ({instructions})", sides, to="kernel")


def _in_processes(run, points):
    """Run once for each of XLA's instruction sets."""
    for name, flags in (("AVX2", "--xla_cpu_max_isa=AVX2"), ("all", "")):
        flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
        command = [
            sys.executable,
            "-m",
            "benchmarks",
            "kernel",
            "--points",
            str(points),
        ]
        command += ["--instructions", name, "--rounds", str(run.rounds)]
        command += (
            ["--json", str(run.json.with_suffix(f".{name}.json"))] if run.json else []
        )
        command += ["--only", *run.only] if run.only else []
        done = subprocess.run(command, env=os.environ | {"XLA_FLAGS": flags})
        run.failed |= done.returncode != 0
