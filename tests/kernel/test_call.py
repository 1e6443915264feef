"""A kernel is its function: in pipelines, under transformations, on any device."""

import os
import subprocess
import sys

import equinox as eqx
import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax import lax
from support.helpers import assert_agree, few
from support.strategies import keys as drawn_keys
from support.strategies import nestings
from support.sweeps import make_mesh

import eqx_pipe as ep
import eqx_pipe.testing as ept

pytest.importorskip("llvmlite")

STRUCT = jax.ShapeDtypeStruct((3,), jnp.float32)


def newton(x):
    """Solve `r ** 2 == x`, in a number of steps that depends on the point."""

    def step(carry):
        _, r, n = carry
        return r, 0.5 * (r + x / r), n + 1

    start = jnp.float32(1e9), jnp.maximum(x, 1.0), jnp.int32(0)
    goes = lambda carry: jnp.abs(carry[0] - carry[1]) > 1e-5 * carry[1]  # noqa: E731
    return lax.while_loop(goes, step, start)[1:]


def everything(point, key, offset=0.0):
    """Return arrays of all kinds: keys, bools, integers, none at all."""
    root, n = newton(point["x"])
    draw = jr.normal(key, (2,)) + point["v"].sum() + offset
    odd = (n % 2 == 1) | point["flag"]
    empty = jnp.zeros((0, 2), jnp.int8) + point["empty"].astype(jnp.int8)
    return {"root": root, "rest": (draw, odd, jr.split(key)[1]), "empty": empty}


def agree(a, b):
    def data(x):
        is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
        return jr.key_data(x) if is_key else x

    assert_agree(*(jax.tree.map(data, tree) for tree in (a, b)))


def points(*shape):
    key, number = jr.key(3), np.prod(shape, dtype=int)
    return {
        "x": jr.uniform(key, shape, minval=0.1, maxval=1e4),
        "v": jr.normal(key, (*shape, 2, 2)),
        "flag": (jnp.arange(number) % 3 == 0).reshape(shape),
        "empty": jnp.zeros((*shape, 0, 1)),
    }


def keys(*shape):
    return jr.split(jr.key(1), shape)


@few
@hp.given(st.data())
def test_the_law_for_pipelines(data):
    pipe = data.draw(nestings(STRUCT, max_depth=2))
    x = data.draw(ept.arrays(jax.ShapeDtypeStruct((5, 3), jnp.float32)))
    by_point = lambda x, key: ep.chain(pipe)(x, key=key)  # noqa: E731
    keys = jr.split(data.draw(drawn_keys()), 5)
    agree(jax.vmap(ep.kernel(by_point))(x, keys), jax.vmap(by_point)(x, keys))


@pytest.mark.parametrize("size", [0, 1, 33])
def test_arrays_of_all_kinds(size):
    ours = jax.jit(jax.vmap(ep.kernel(everything)))(points(size), keys(size))
    agree(ours, jax.vmap(everything)(points(size), keys(size)))


def test_a_single_point_is_the_function():
    for run in (lambda f: f, jax.jit):
        got = run(ep.kernel(everything))(points(), jr.key(1))
        agree(got, run(everything)(points(), jr.key(1)))
    with jax.disable_jit():
        agree(ep.kernel(newton)(jnp.float32(9)), newton(jnp.float32(9)))


def test_nested_vmaps_are_one():
    """Each argument has its own axes, at other places."""
    ours, plain = ep.kernel(everything), everything
    for axes in ((None, 0), (0, None), (0, 1)):
        ours, plain = (jax.vmap(f, axes) for f in (ours, plain))
    args = points(2, 5), keys(4, 2)
    agree(jax.jit(ours)(*args), jax.jit(plain)(*args))
    assert str(jax.make_jaxpr(ours)(*args)).count("eqx_pipe_kernel") == 1


def test_kernels_in_kernels():
    inner = ep.kernel(lambda x: newton(x)[0])
    fn = lambda x: inner(x) + jax.vmap(inner)(jnp.stack([x, 4 * x])).sum()  # noqa: E731
    x = points(40)["x"]
    np.testing.assert_allclose(jax.vmap(ep.kernel(fn))(x), 4 * jnp.sqrt(x), rtol=1e-5)


def test_refuses_what_is_computed_over_the_axis_of_the_points():
    place = lambda x, name: x + lax.axis_index(name).astype(x.dtype)  # noqa: E731
    total = lambda x, name: lax.fori_loop(0, 2, lambda *_: lax.psum(x, name), x)  # noqa: E731
    for fn in (place, total):
        run = jax.vmap(ep.kernel(lambda x, fn=fn: fn(x, "points")), axis_name="points")
        with pytest.raises(ValueError, match=r"uses the axis 'points' of `vmap`"):
            run(jnp.arange(3.0))
    mesh = make_mesh(2)  # each device has a place of its own, which its points share
    run = jax.vmap(ep.kernel(lambda x: place(x, *mesh.axis_names)))
    specs = jax.sharding.PartitionSpec(*mesh.axis_names)
    run = jax.shard_map(run, mesh=mesh, in_specs=specs, out_specs=specs)
    np.testing.assert_array_equal(jax.jit(run)(jnp.zeros(4)), [0, 0, 1, 1])


def test_out_axes_and_arguments_by_name():
    fn = ep.kernel(everything)
    mapped = jax.vmap(lambda p, k: fn(p, key=k, offset=1.0), (0, 0), 0)
    plain = jax.vmap(lambda p, k: everything(p, k, offset=1.0))
    agree(mapped(points(6), keys(6)), plain(points(6), keys(6)))
    turned = jax.vmap(lambda v: ep.kernel(jnp.cumsum)(v), 1, 1)
    v = jr.normal(jr.key(0), (3, 40))
    agree(turned(v), jnp.cumsum(v, 0))


class Solver(eqx.Module):
    scale: jax.Array
    steps: int = eqx.field(static=True)

    @ep.kernel
    def __call__(self, x, *, key=None):
        step = lambda _, y: y + self.scale * jnp.sin(y)  # noqa: E731
        return lax.fori_loop(0, self.steps, step, x)


def test_methods_stages_and_filter_vmap():
    solver, x = Solver(jnp.float32(0.1), 20), jnp.linspace(0, 1, 40)
    want = x
    for _ in range(20):
        want = want + 0.1 * jnp.sin(want)
    np.testing.assert_allclose(eqx.filter_vmap(solver)(x), want, rtol=1e-5)
    pipe = ep.chain(jnp.sin, solver)
    agree(jax.vmap(pipe)(jnp.arcsin(x)), want)
    solvers = eqx.filter_vmap(lambda s: Solver(s, 20))(jnp.linspace(0, 1, 3))
    run = eqx.filter_vmap(lambda s, x: jax.vmap(s)(x), in_axes=(eqx.if_array(0), None))
    np.testing.assert_allclose(run(solvers, x)[0], x)


def test_derivatives_are_those_of_the_function():
    def cubes(x):
        return lax.fori_loop(0, 2, lambda _, y: y * x, x)

    x, kernel = jnp.linspace(-1, 1, 20), ep.kernel(cubes)
    for wrong, right in (
        (jax.vmap(jax.grad(kernel))(x), 3 * x**2),
        (jax.grad(lambda x: jax.vmap(kernel)(x).sum())(x), 3 * x**2),
        (jnp.diag(jax.jacfwd(jax.vmap(kernel))(x)), 3 * x**2),
        (jax.jvp(jax.vmap(kernel), [x], [x])[0], x**3),
        (jax.vmap(jax.vmap(jax.hessian(kernel)))(x[:, None])[:, 0], 6 * x),
    ):
        np.testing.assert_allclose(wrong, right, rtol=1e-4, atol=1e-5)


SPACE = ep.Space({"x": ep.Geomspace(0.1, 1e6, 600)}, "zip")


def roots(point):
    return newton(point["x"])[0]


def test_in_sweeps_on_any_devices():
    want = np.sqrt(np.geomspace(0.1, 1e6, 600))
    for d in (1, 8):
        got = ep.sweep(ep.kernel(roots), SPACE, mesh=make_mesh(d))
        np.testing.assert_allclose(got.values, want, rtol=1e-5)
    mean = ep.sweep(ep.kernel(roots), SPACE, reduce=ep.reduce.Mean())
    np.testing.assert_allclose(mean.values, want.mean(), rtol=1e-5)
    run = ep.sweeper(ep.kernel(roots), SPACE)
    np.testing.assert_allclose(run(SPACE).values, want, rtol=1e-5)
    mapped = ep.vmap(ep.kernel(lambda x: newton(x)[0]), mesh=make_mesh(8))
    np.testing.assert_allclose(mapped(jnp.float32(want) ** 2), want, rtol=1e-5)
    found = ep.search.explore(
        ep.kernel(lambda p: (newton(p["x"])[0] - 2) ** 2),
        {"x": ep.Uniform(1, 9)},
        ep.search.Design([[0.0], [0.375], [1.0]]),
        rounds=1,
        num=3,
    )
    assert float(found.best().point["x"]) == 4


@pytest.mark.parametrize(
    "fn",
    [lambda x: (), lambda x: 3.0, lambda x: x * 0 + 2, lambda x: x, lambda x: None],
)
def test_outputs_that_are_constants_inputs_or_nothing(fn):
    x = jnp.linspace(0, 1, 40)
    got, want = (jax.vmap(f)(x) for f in (ep.kernel(fn), fn))
    agree(got, want)
    kinds = [[y.weak_type for y in jax.tree.leaves(out)] for out in (got, want)]
    assert kinds[0] == kinds[1]


def test_polynomials():
    c, x = jr.normal(jr.key(0), (40, 4)), jnp.linspace(-2, 2, 40)
    got = jax.vmap(ep.kernel(jnp.polyval))(c, x)
    agree(got, jax.vmap(jnp.polyval)(c, x))


def test_steps_in_kernels_are_not_counted():
    with pytest.raises(ValueError, match="Count the steps of the function itself"):
        ep.sweep(ep.kernel(roots), SPACE, count_steps=True)


def test_elsewhere_it_is_the_function():
    """Lower for a GPU, which needs none."""
    run = jax.jit(jax.vmap(ep.kernel(newton)))
    x = jnp.ones(40)
    text = run.trace(x).lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.while" in text and "eqx_pipe" not in text
    assert "eqx_pipe_kernel" in run.lower(x).as_text()


def test_the_bits_of_a_lane_depend_on_nothing_else():
    x = points(200)["x"]
    whole = jax.vmap(ep.kernel(newton))(x)[0]
    for first, last in ((0, 1), (3, 40), (117, 200)):
        some = jax.vmap(ep.kernel(newton))(x[first:last])[0]
        np.testing.assert_array_equal(some, whole[first:last])
    swept = ep.sweep(ep.kernel(newton), ep.Values(x), mesh=make_mesh(8)).values[0]
    np.testing.assert_array_equal(swept, whole)


def test_a_plan_names_the_machine():
    coming = ep.plan(ep.kernel(roots), SPACE)
    assert "llvmlite" in coming.kernels and coming.batch_size == 75
    assert "kernels  llvmlite" in str(coming)
    assert ep.plan(roots, SPACE).kernels == ""


@jax.custom_vjp
def _clipped(x):
    return x**2


_clipped.defvjp(lambda x: (x**2, x), lambda x, d: (jnp.clip(2 * x * d, -1, 1),))


def test_custom_gradients():
    x, kernel = jnp.linspace(-1, 1, 5), ep.kernel(_clipped)
    of_sum = jax.jit(jax.grad(lambda x: jax.vmap(kernel)(x).sum()))
    np.testing.assert_allclose(of_sum(x), jnp.clip(2 * x, -1, 1))
    np.testing.assert_allclose(jax.vmap(jax.grad(kernel))(x), of_sum(x))


WITHOUT = """
import sys
sys.modules["llvmlite"] = sys.modules["llvmlite.binding"] = None
import eqx_pipe as ep, jax, jax.numpy as jnp
fn = ep.kernel(jnp.sin)
fn(1.0)
try:
    jax.vmap(fn)(jnp.ones(3))
except ImportError as error:
    assert "pip install 'eqx_pipe[kernels]'" in str(error), error
    print("refused")
"""


def test_without_llvmlite():
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, env=os.environ
    )
    assert run.stdout == "refused\n", run.stderr
