"""`equinox.error_if` in kernels: the errors of a sweep of the function as it is."""

import contextlib

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import eqx_pipe as ep

pytest.importorskip("llvmlite")

SPACE = {"x": ep.Linspace(-2, 9, 12)}
# Which of them depends on where JAX notices the error.
RAISED = jax.errors.JaxRuntimeError, ValueError
SPACE_OF_N = {"n": ep.Values(range(120))}


def before(p):
    return jnp.sqrt(eqx.error_if(p["x"], p["x"] < 0, "negative"))


def in_a_loop(p):
    """Count to `x`; without its error, it would not end for 7."""

    def step(n):
        n = eqx.error_if(n, n == 6, "no number beyond 6")
        return jnp.where(n == 6, n, n + 1)

    return lax.while_loop(lambda n: n < p["x"], step, jnp.float32(0))


def in_scans_and_branches(p):
    def step(total, i):
        over = lambda y: eqx.error_if(y, p["x"] > 7, "over 7")  # noqa: E731
        return total + lax.cond(p["x"] > 3, over, jnp.abs, p["x"] * i), None

    return lax.scan(step, jnp.float32(0), jnp.arange(3.0))[0]


def with_several_messages(p):
    def one(x):
        which = jnp.where(x > 5, 1, 0)
        bad = (x > 5) | (x < 0)
        texts = ["too small", "too large"]
        return eqx.internal.branched_error_if(x, bad, which, texts)

    return jax.vmap(one)(jnp.stack([p["x"], jnp.float32(1)]))


def before_loops(p):
    """Without its error, the loops would not end for numbers from -2 to 0."""
    step = eqx.error_if(p["x"], p["x"] <= 0, "no steps forward")

    def outer(total, limit):
        return lax.while_loop(lambda t: t < limit, lambda t: t + step, total), None

    first = jax.jit(lambda t: lax.while_loop(lambda t: t < 9, lambda t: t + step, t))
    return lax.scan(outer, first(jnp.float32(0)), jnp.arange(5.0) * 20)[0]


@ep.kernel
def _roots(x):
    return jnp.sqrt(eqx.error_if(x, x <= 0, "not positive"))


def in_other_kernels(p):
    steps = jax.vmap(_roots)(jnp.stack([p["x"], p["x"] * 4])).sum()
    return _roots(lax.while_loop(lambda t: t < 9, lambda t: t + steps, p["x"]))


FUNCTIONS = [
    in_other_kernels,
    before_loops,
    before,
    in_a_loop,
    in_scans_and_branches,
    with_several_messages,
]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_failed_points_are_marked(fn):
    got, want = (
        ep.sweep(f, SPACE, on_error="mark", batch_size=8) for f in (ep.kernel(fn), fn)
    )
    assert got.errors == want.errors and got.errors
    np.testing.assert_allclose(got.values, want.values, rtol=1e-6)


@pytest.mark.parametrize("fn", FUNCTIONS[:2])
def test_the_first_failed_point_is_raised(fn):
    found = []
    for f in (ep.kernel(fn), fn):
        with pytest.raises(ep.SweepError) as error:
            ep.sweep(f, SPACE)
        found.append((str(error.value), error.value.indices))
    assert found[0] == found[1]


def after_a_loop(n):
    """Count the steps of a loop, whose lanes take other points, and fail by them."""
    x = eqx.error_if(n.astype("float32"), n % 50 == 9, "before")
    steps, y = lax.while_loop(
        lambda c: c[0] < n % 37, lambda c: (c[0] + 1, c[1]), (0, x)
    )
    y = eqx.error_if(y, steps % 7 == 3, "after")
    over = lambda y: eqx.error_if(y, steps == 33, "over 20")  # noqa: E731
    return lax.cond(steps > 20, over, jnp.abs, y) + x


def in_nested_loops(n):
    """Fail in both loops, or in the test of the inner one."""

    def test(c):
        return eqx.error_if(c[0], c[0] == n % 10, "in a test") < n % 12

    def inner(c):
        after = eqx.error_if(c[0], (c[0] == 4) & (n % 3 == 0), "inner")
        return after + 1, c[1] + 1

    def outer(c):
        total = lax.while_loop(test, inner, (0, c[1]))[1]
        return c[0] + 1, eqx.error_if(total, total > 60, "outer")

    return lax.while_loop(lambda c: c[0] < n % 11, outer, (0, 0))[1]


@pytest.mark.parametrize("fn", [after_a_loop, in_nested_loops])
def test_each_of_many_lanes_fails_alone(fn):
    """JAX fails for many points if one lane fails, so these are computed one by one."""
    alone, want = jax.jit(fn), {}
    for n in range(120):
        with contextlib.suppress(*RAISED):
            want[n] = float(alone(n))
    got = ep.sweep(lambda p: ep.kernel(fn)(p["n"]), SPACE_OF_N, on_error="mark")
    assert got.errors.keys() == set(range(120)) - want.keys() and 20 < len(want) < 100
    np.testing.assert_array_equal(got.values[[*want]], [*want.values()])


def test_outside_of_sweeps_jax_raises():
    run = jax.jit(jax.vmap(ep.kernel(lambda x: before({"x": x}))))
    np.testing.assert_array_equal(run(jnp.arange(5.0) ** 2), jnp.arange(5.0))
    with pytest.raises(RAISED, match="negative"):
        jax.block_until_ready(run(jnp.arange(-1.0, 4.0)))
    np.testing.assert_array_equal(run(jnp.arange(5.0) ** 2), jnp.arange(5.0))


def test_keys_pass_through_a_function_with_errors():
    def fn(key):
        draw = jax.random.uniform(key)
        return eqx.error_if(draw, draw > 2, "no"), jax.random.split(key)[0]

    keys = jax.random.split(jax.random.key(0), 5)
    (x, got), (y, want) = (jax.vmap(f)(keys) for f in (ep.kernel(fn), fn))
    np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(*map(jax.random.key_data, (got, want)))


def test_callbacks_are_refused():
    def fn(x):
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), x.dtype), x)

    with pytest.raises(ValueError, match="`pure_callback` .*is not supported"):
        jax.vmap(ep.kernel(fn))(jnp.ones(3))
