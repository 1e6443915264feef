"""How much longer does a grid take with its costly dim last, and what helps?

Lanes of a batch are neighbours along the last dim. The steps of a point vary along the
first dim, or along both (`escape`); each grid is swept as it is and with its dims
reversed, each divided by the best of some sizes with the dims as they are. `order_by`
gets the coordinates on the first dim. "waste" is the number of steps executed for each
one that a point needs.
"""

import functools as ft
import math

import jax
import jax.numpy as jnp

import eqx_pipe as ep

from ._timing import quickest
from .sweep_divergence import by_diffrax

DEVICES = "all"
ROUNDS = 7
SIZES = (8, 16, 32, 48, 64, 96, 128, 256, 512, 1024)
QUICK = {"points": 64, "sizes": (8,), "only": ("oscillator",)}


def oscillator(p):
    """Count the steps until a damped oscillator has lost most of its energy."""

    def step(s):
        x, v, n = s
        v = v - 0.1 * (jnp.sin(x) * p["rate"] + 2 * p["damping"] * v)
        return x + 0.1 * v, v, n + 1

    def goes_on(s):
        return (s[0] ** 2 + s[1] ** 2 > 1e-2) & (s[2] < 2000)

    return jax.lax.while_loop(goes_on, step, (jnp.float32(1), jnp.float32(0), 0))[2]


def escape(p):
    def step(s):
        x, y, n = s
        return x * x - y * y + p["re"], 2 * x * y + p["im"], n + 1

    goes_on = lambda s: (s[0] ** 2 + s[1] ** 2 < 4) & (s[2] < 1000)  # noqa: E731
    return jax.lax.while_loop(goes_on, step, (p["re"], p["im"], 0))[2]


def relaxation(p):
    """Solve an equation that an explicit solver finds stiff."""
    import diffrax

    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, p: -p["rate"] * (y - jnp.cos(p["w"] * t))),
        diffrax.Bosh3(),
        0.0,
        3.0,
        None,
        jnp.float32(0),
        p,
        stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-5),
        max_steps=100_000,
        throw=False,
    ).ys[0]


def root(p):
    import optimistix as optx

    find = optx.Bisection(p["tolerance"], p["tolerance"])
    kepler = lambda y, p: y - p["e"] * jnp.sin(y) - 1.3  # noqa: E731
    ends = {"lower": jnp.float32(0), "upper": jnp.float32(4)}
    start = jnp.float32(2)
    return optx.root_find(kepler, find, start, p, ends, max_steps=99, throw=False).value


def cases(points):
    """Yield the name, package and function of each case, and its axes."""
    side = math.isqrt(points)
    line, geometric = ep.Linspace, ep.Geomspace
    rates = {"damping": geometric(0.1, 1, side), "rate": line(1, 3, side)}
    plane = {"re": line(-2, 0.6, side), "im": line(-1.2, 1.2, side)}
    stiff = {"mu": geometric(0.3, 100, side // 4), "x": line(0.5, 2, side // 4)}
    relaxing = {"rate": geometric(1, 300, side // 4), "w": line(0.5, 3, side // 4)}
    roots = {"tolerance": geometric(1e-6, 0.1, side), "e": line(0.1, 0.9, side)}
    yield "oscillator", None, lambda: oscillator, rates
    yield "escape", None, lambda: escape, plane
    yield "van der pol, diffrax", "diffrax", by_diffrax, stiff
    yield "relaxation, diffrax", "diffrax", lambda: relaxation, relaxing
    yield "root, optimistix", "optimistix", lambda: root, roots


def main(run, *, points=2**20, sizes=SIZES):
    for case, package, make, axes in cases(points):
        if not run.chosen([case]) or (package and not run.has(package)):
            continue
        # Under `jit` each is traced once, and not in every sweep.
        fn, native = jax.jit(make()), jax.jit(ep.kernel(make()))
        as_is, turned = ep.Space(axes), ep.Space(dict(reversed(axes.items())))
        cost = next(iter(axes))
        ways = {
            "as written": (fn, as_is, {}),
            "reversed": (fn, turned, {}),
            "reversed, order_by": (fn, turned, {"order_by": lambda p, c=cost: p[c]}),
            "reversed, kernel": (native, turned, {}),
        }
        sides = {name: ft.partial(values, *way) for name, way in ways.items()}
        tried = {n: ft.partial(values, fn, as_is, {"batch_size": n}) for n in sizes}
        size = next(iter(quickest(tried, 1, run.clock)))
        sides["best size"] = tried[size]

        def waste(name, _, ways=ways):
            if name not in ways or "kernel" in name:
                return {"waste": "-"}
            fn, space, options = ways[name]
            options = {"count_steps": True, "progress": False, **options}
            return {"waste": f"{ep.sweep(fn, space, **options).waste:.2f}"}

        run.compare(case, sides, to="best size", columns=waste)
        run.note(f"{case}: the best size is {size}")


def values(fn, space, options):
    return ep.sweep(fn, space, progress=False, **options).values
