"""Sweeps over solvers: diffrax, optimistix and lineax, explicit and implicit."""

import concurrent.futures as cf
import functools as ft
import subprocess
import sys
import textwrap

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
import numpy as np
import optimistix as optx
import pytest

import eqx_pipe as ep
import eqx_pipe.testing as ept

SPACE = ep.Space({"k": ep.Linspace(1.0, 2.0, 3), "y": ep.Values([1.0, 1.5])})
STEPS = diffrax.PIDController(rtol=1e-3, atol=1e-4)


def by_vmap(fn, space=SPACE):
    """Return the values at all points by `jax.vmap`."""
    points = [space.point(i) for i in range(space.size)]
    return jax.vmap(fn)(jax.tree.map(lambda *leaves: jnp.stack(leaves), *points))


def solve(make_solver, **settings):
    """Make a function that solves `y' = -k y^3`; every call makes a new one."""

    def fn(p):
        def field(t, y, k):
            return -k * y**3

        term = diffrax.ODETerm(field)
        y0 = jnp.stack([p["y"], 2 * p["y"]])
        made = {name: make() for name, make in settings.items()}
        solution = diffrax.diffeqsolve(
            term, make_solver(), 0.0, 1.0, 0.05, y0, p["k"],
            stepsize_controller=STEPS, **made,
        )  # fmt: skip
        return {"y": solution.ys, "steps": solution.stats["num_steps"]}

    return fn


def sensitivity(adjoint):
    """Make the derivative of a solve by its parameter, backward through `adjoint`."""

    def fn(p):
        def last(k):
            # An explicit one: backward through an implicit one compiles for half a
            # minute, and derivatives of roots are asked below.
            inner = solve(diffrax.Heun, adjoint=adjoint)
            return jnp.sum(inner({"k": k, "y": p["y"]})["y"])

        return jax.grad(last)(p["k"])

    return fn


def crossing(p):
    """Find by Newton's method when a solution falls to 0.8 of its start."""
    event = diffrax.Event(
        lambda t, y, args, **_: y - 0.8 * p["y"], optx.Newton(rtol=1e-3, atol=1e-3)
    )
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, k: -k * y**3), diffrax.Heun(),
        0.0, 5.0, 0.05, p["y"], p["k"], stepsize_controller=STEPS, event=event,
    )  # fmt: skip
    return solution.ts[-1]


def root(solver):
    def fn(p):
        found = optx.root_find(
            lambda y, k: y**3 + y - k * p["y"], solver, p["y"], p["k"]
        )
        return found.value

    return fn


def curve(solver):
    """Make a fit of two numbers to three residuals."""

    def fn(p):
        def residuals(y, k):
            return jnp.stack([y[0] - k, y[1] - y[0] ** 2, y[1] - p["y"]])

        start = jnp.stack([p["y"], p["y"]])
        return optx.least_squares(residuals, solver, start, p["k"], throw=False).value

    return fn


def linear(operator, solver):
    def fn(p):
        matrix = jnp.eye(3) * (2 + p["k"]) + 0.1 * p["y"]
        right = jnp.arange(3.0)
        return lx.linear_solve(operator(matrix, right), right, solver).value

    return fn


TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}
# Makers: a fresh function, with fresh solvers, each time.
PROGRAMS = {
    "saved at times": lambda: solve(
        diffrax.Heun, saveat=lambda: diffrax.SaveAt(ts=jnp.linspace(0, 1, 4))
    ),
    "implicit Euler": lambda: solve(
        lambda: diffrax.ImplicitEuler(root_finder=optx.Newton(**TOLERANCES))
    ),
    "backward, step by step": lambda: sensitivity(diffrax.RecursiveCheckpointAdjoint),
    "event": lambda: lambda p: crossing(p),
    "root, differentiated": lambda: (
        lambda p: jax.grad(
            lambda y: root(optx.Newton(**TOLERANCES))({"k": p["k"], "y": y})
        )(p["y"])
    ),
    "fit": lambda: curve(optx.LevenbergMarquardt(**TOLERANCES)),
    "linear, of a function": lambda: linear(
        lambda matrix, right: lx.FunctionLinearOperator(
            lambda x: matrix @ x, jax.eval_shape(lambda: right)
        ),
        lx.GMRES(**TOLERANCES),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sweep_gives_what_vmap_gives_and_compiles_once(name):
    values = ep.sweep(PROGRAMS[name](), SPACE).values
    expected = by_vmap(PROGRAMS[name]())
    for ours, theirs in zip(*map(jax.tree.leaves, (values, expected)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    with ept.assert_compiles(0):
        again = ep.sweep(PROGRAMS[name](), SPACE).values
    assert eqx.tree_equal(values, again)


def newton(p):
    """Solve `y^2 = k`; raise where there is no solution."""
    solver = optx.Newton(rtol=1e-5, atol=1e-5)
    return optx.root_find(
        lambda y, k: y**2 - k, solver, jnp.ones(()), p["k"], max_steps=30
    ).value


ROOTS = {"k": ep.Values([1.0, 4.0, -1.0, 9.0, 16.0])}


def test_points_without_a_solution_are_isolated():
    result = ep.sweep(newton, ROOTS, on_error="mark")
    assert result.ok.tolist() == [True, True, False, True, True]
    np.testing.assert_allclose(result.values, [1, 2, np.nan, 3, 4], rtol=1e-4)
    with pytest.raises(ep.SweepError) as caught:
        ep.sweep(newton, ROOTS)
    assert caught.value.indices == (2,)


def test_reductions_orders_and_executors_take_solvers():
    values = ep.sweep(newton, ROOTS, on_error="mark", batch_size=2).values
    best = ep.sweep(newton, ROOTS, reduce=ep.reduce.ArgMax(), on_error="mark").values
    assert best.index == 4
    ordered = ep.sweep(
        newton, ROOTS, order_by=lambda p: -p["k"], on_error="mark", batch_size=2
    )
    # Points that share a batch with the failing one are computed again, by other
    # programs, and in another order these are other points.
    close = ft.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-6)
    close(ordered.values, values)
    with cf.ThreadPoolExecutor(2) as pool:
        away = ep.sweep(
            newton, ROOTS, executor=pool, on_error="mark", batch_size=2
        ).values
    np.testing.assert_array_equal(np.asarray(away), values)


RESUME = """
import jax, diffrax, jax.numpy as jnp, optimistix as optx
import eqx_pipe as ep

def fn(p):
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, k: -k * y**3), diffrax.ImplicitEuler(
            root_finder=optx.Newton(rtol=1e-4, atol=1e-4)
        ), 0.0, 1.0, 0.1, p["y"], p["k"],
    )
    return solution.ys[-1]

space = {"k": ep.Linspace(1.0, 2.0, 3), "y": ep.Values([1.0, 1.5])}
result = ep.sweep(fn, space, store=STORE, shard=PART, batch_size=1)
print(result.ok.tolist(), result.values[:].tolist())
"""


def test_a_store_knows_an_implicit_solver_after_a_restart(tmp_path):
    def run(part):
        start = f"STORE, PART = {str(tmp_path / 'run.zarr')!r}, {part}\n"
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", start + textwrap.dedent(RESUME)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    assert "False" in run((0, 2))
    assert "False" not in run((1, 2))
    assert "nan" not in run(None)


def test_steps_of_solvers_are_counted():
    space = ep.Values([0.5, 2.0, 40.0])

    def explicit(k):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(lambda t, y, k: -k * y), diffrax.Heun(), 0.0, 1.0, 0.05,
            1.0, k, stepsize_controller=STEPS,
        )  # fmt: skip
        return solution.stats["num_steps"]

    def implicit(k):
        root = optx.root_find(
            lambda y, k: y**3 + k * y - 1, optx.Newton(1e-5, 1e-5), 5.0, k
        )
        return root.stats["num_steps"]

    one = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])
    # A step of Heun's method has a loop over its two stages inside of it.
    for fn, of_steps in ((explicit, lambda n: 3 * n), (implicit, lambda n: n)):
        result = ep.sweep(fn, space, batch_size=3, mesh=one, count_steps=True)
        needed = of_steps(result.values.astype(int))
        assert result.steps.needed.tolist() == needed.tolist()
        assert set(result.steps.executed.tolist()) == {max(needed)}
