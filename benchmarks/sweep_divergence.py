"""What do points that take longer than others cost, and what helps?

65,536 points whose loops take 1 to 1,000 steps, 150 on average, in random order (or
`--order ascending`, `descending`). Next to `vmap` over all points on one device, and to
one batch per device: the sweep of the plain `while_loop`, with `order_by` (the number
of steps, or guesses that are off by up to 10 and 30 %), and of `refill`; then those of
the same functions under `jax.jit`, which need not be traced again (nor need the two by
hand). Last, a diffrax solve from easy to stiff, with and without `order_by`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep

from ._models import rk4

DEVICES = "all"
QUICK = {"points": 256, "solves": 64, "only": ("sine, 2", "diffrax")}


def sines(x):
    for _ in range(4):
        x = x + 0.01 * jnp.sin(x)
    return x


def rossler(x):
    def slope(x):
        a, b, c = x
        return jnp.stack([-b - c, a + 0.2 * b, 0.2 + c * (a - 5.7)])

    return rk4(slope, x, 0.01)


MODELS = {
    "sine": (lambda x: x + 0.01 * jnp.sin(x), ()),
    "logistic": (lambda x: 3.7 * x * (1 - x), ()),
    "sines": (sines, ()),
    "rossler": (rossler, (3,)),
}


def parts(step, shape):
    """What both kinds of loop are made of."""
    init = lambda p: (jnp.int32(0), jnp.broadcast_to(p["x"], shape))  # noqa: E731
    cond = lambda p, c: c[0] < p["n"]  # noqa: E731
    body = lambda p, c: (c[0] + 1, step(c[1]))  # noqa: E731
    out = lambda p, c: jnp.sum(c[1])  # noqa: E731
    return init, cond, body, out


def plain(init, cond, body, out):
    def fn(p):
        going, step = functools.partial(cond, p), functools.partial(body, p)
        return out(p, jax.lax.while_loop(going, step, init(p)))

    return fn


def mesh(n):
    devices = jax.devices()[:n]
    return jax.make_mesh((n,), ("i",), (AxisType.Auto,), devices=devices)


def one_batch(fn, points, devices):
    """By hand: everything that a device has to do, vectorised at once."""
    split = dict(mesh=mesh(devices), in_specs=P("i"), out_specs=P("i"), check_vma=False)
    run = jax.jit(jax.shard_map(jax.vmap(fn), **split))
    return lambda: np.asarray(run(points))


def loops(run, num, order):
    rng = np.random.default_rng(0)
    trips = rng.exponential(152, 2 * num).astype(np.int32)
    trips = trips[(trips >= 1) & (trips <= 1000)][:num]
    if order != "random":
        trips = np.sort(trips)[:: {"ascending": 1, "descending": -1}[order]].copy()
    x = rng.uniform(0.1, 0.9, num).astype(np.float32)
    costs = {"order_by": trips}
    for percent in (10, 30):
        guess = rng.uniform(1 - percent / 100, 1 + percent / 100, num)
        costs[f"order_by within {percent} %"] = trips * guess
    points = {"n": jnp.asarray(trips), "x": jnp.asarray(x)}
    space = ep.Space({k: ep.Values(v) for k, v in points.items()}, "zip")
    run.note(
        f"{num:,} points of 1 to {trips.max()} steps, {trips.mean():.0f} on average"
    )
    devices = sorted({1, jax.device_count()})
    for case in run.chosen([f"{name}, {d}" for name in MODELS for d in devices]):
        name, d = case.split(", ")
        d = int(d)
        four = parts(*MODELS[name])
        fn, refilled = plain(*four), ep.refill(*four)
        each = functools.partial(ep.sweep, space=space, mesh=mesh(d))
        sides = {
            "by hand, one batch": one_batch(fn, points, 1),
            "by hand, one batch per device": one_batch(fn, points, d),
            "sweep": lambda each=each, fn=fn: each(fn).values,
        }
        for prefix, wrap in (("sweep", lambda f: f), ("jitted", jax.jit)):
            calls = {f"{prefix}, {k}": (wrap(fn), v) for k, v in costs.items()}
            calls[f"{prefix}, refill"] = wrap(refilled), None
            for side, (f, cost) in calls.items():
                sides[side] = lambda f=f, c=cost, e=each: e(f, order_by=c).values
        run.compare(f"{case} devices, {order}", sides, to="by hand, one batch")


def diffrax_solve(p):
    """Van der Pol's oscillator, solved with adaptive steps: the stiffer, the slower."""
    import diffrax

    def field(t, y, args):
        return jnp.stack([y[1], p["mu"] * (1 - y[0] ** 2) * y[1] - y[0]])

    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        0.0,
        10.0,
        None,
        jnp.stack([p["y"], p["y"]]),
        stepsize_controller=diffrax.PIDController(rtol=1e-4, atol=1e-6),
        max_steps=100_000,
        adjoint=diffrax.ForwardMode(),
        saveat=diffrax.SaveAt(t1=True),
    ).ys[0]


def solver(run, num):
    rng = np.random.default_rng(0)
    mu = np.float32(rng.permutation(np.geomspace(0.1, 100, num)))
    y = np.float32(rng.uniform(0.5, 2, num))
    space = ep.Space({"mu": ep.Values(mu), "y": ep.Values(y)}, "zip")
    sides = {
        "sweep": lambda: ep.sweep(diffrax_solve, space).values,
        "order_by": lambda: ep.sweep(diffrax_solve, space, order_by=mu).values,
    }
    run.compare(f"diffrax, {num:,}", sides, to="sweep")


def main(run, *, points=65_536, order="random", solves=16_384):
    loops(run, points, order)
    if run.chosen(["diffrax"]) and run.has("diffrax"):
        solver(run, solves)
