"""Loops of short steps: several are compiled as one, and nothing else changes."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from loops import points, reference

import eqx_pipe as ep
from eqx_pipe._choose.dependence import equations
from eqx_pipe._refill import lanes
from eqx_pipe._refill.quick import is_quick, steps_at_once
from eqx_pipe._sweep.tracing.evaluate import evaluate

STEPS = {
    "logistic": (lambda p, x: 3.7 * x * (1 - x), lambda p: p["x"]),
    "multiply-add": (lambda p, x: x * x * 0.5 + p["x"], lambda p: p["x"]),
    "two": (lambda p, x: (x[1], x[0] + p["x"] * x[1]), lambda p: (p["x"], p["x"])),
    "whole": (lambda p, x: jnp.where(x > 9, x - 7, 3 * x + 1), lambda p: p["n"]),
    "complex": (lambda p, z: z * z * 0.3 + 0.1, lambda p: lax.complex(p["x"], p["x"])),
    "root": (lambda p, x: jnp.sqrt(x), lambda p: p["x"]),
}


def parts(name):
    step, start = STEPS[name]
    return (
        lambda p: (jnp.int32(0), start(p)),
        lambda p, c: c[0] < p["n"],
        lambda p, c: (c[0] + 1, step(p, c[1])),
        lambda p, c: c,
    )


def jaxprs(cond, body, *carry):
    """Both parts of a loop as they stand in a jaxpr."""
    loop = lambda *carry: lax.while_loop(cond, body, carry)  # noqa: E731
    (eqn,) = jax.make_jaxpr(loop)(*carry).eqns
    return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]


def at_once(cond, body, *carry, lanes=512):
    return steps_at_once(*jaxprs(cond, body, *carry), lanes)


def equal(a, b):
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def space_of(given):
    return ep.Space({k: ep.Values(v) for k, v in given.items()}, "zip")


def make_mesh(n):
    return jax.make_mesh((n,), ("x",), devices=jax.devices()[:n])


def less(c):
    return c[0] < 9


def test_steps_of_a_few_operations_on_single_numbers_are_put_together():
    short = lambda c: (c[0] * c[0] * 0.5 + 0.1,)  # noqa: E731
    assert at_once(less, short, 0.0) == 4
    assert at_once(less, jax.jit(short), 0.0) == 4
    assert at_once(less, lambda c: (c[0] + 1,), 0) == 4
    assert at_once(less, lambda c: (c[0] / 2 + 1,), 0.0) == 4


@pytest.mark.parametrize(
    "body, carry",
    [
        (lambda c: (c[0] + 1, jnp.sin(c[1])), (0, 0.5)),
        (lambda c: (c[0] + 1, jnp.exp(c[1])), (0, 0.5)),
        (lambda c: (c[0] + 1, jax.nn.relu(c[1])), (0, np.ones(3, np.float32))),
        (lambda c: (c[0] + jnp.ones(5).sum(),), (0.0,)),
        (lambda c: (lax.div(c[0], 2),), (9,)),
        (lambda c: (c[0] + 1, jr.split(c[1])[0]), (0, jr.key(0))),
        (lambda c: (c[0] + 1, c[1]), (0, jr.key(0))),
        (lambda c: (c[0] + 1, jax.debug.callback(print) or c[1]), (0, 0.5)),
        (lambda c: (lax.while_loop(lambda x: x < 9, lambda x: x + 1, c[0]),), (0,)),
        (lambda c: (sum((c[0] * k for k in range(2, 9)), 0.1),), (0.0,)),
    ],
)
def test_other_steps_stay_alone(body, carry):
    assert at_once(less, body, *carry, lanes=1) == 1


def test_a_dear_test_of_the_end_counts_too():
    short = lambda c: (c[0] * 0.5 + 0.1,)  # noqa: E731
    assert at_once(lambda c: jnp.sin(c[0]) < 0.9, short, 0.0) == 1


def test_fewer_at_once_for_more_lanes():
    short = lambda c: (c[0] + 1, c[1] * 0.5)  # noqa: E731
    found = [at_once(less, short, 0, 0.5, lanes=n) for n in (1, 512, 2048, 8192)]
    assert found == [4, 4, 2, 1]
    assert steps_at_once(*jaxprs(less, short, 0, 0.5), 1, most=2) == 2


@pytest.mark.parametrize("lanes, times", [(512, 4), (1024, 2), (10**6, 1)])
def test_the_program_of_a_sweep_has_them(lanes, times):
    def fn(x, n):
        step = lambda c: (c[0] + 1, 3.7 * c[1])  # noqa: E731
        return lax.while_loop(lambda c: c[0] < n, step, (0, x))[1]

    for wrapped in (fn, jax.jit(fn), jax.checkpoint(fn)):
        jaxpr = jax.make_jaxpr(wrapped)(0.5, 3)
        run = lambda *args: evaluate(jaxpr, [], args, lanes)  # noqa: E731, B023
        found = equations(jax.make_jaxpr(run)(0.5, 3).jaxpr)
        assert sum(eqn.primitive.name == "mul" for eqn in found) == times
        assert run(0.5, 3)[0] == np.float32(3.7) ** 3 / 2


def within(fn, how):
    """A loop inside of what a sweep takes apart."""
    array = jnp.arange(3.0)

    def scanned(p):
        step = lambda c, x: (c + x, fn(p))  # noqa: E731
        return lax.scan(step, array.sum(), array)

    def looped(p):
        body = lambda c: (c[0] + 1, fn({**p, "n": c[0]}))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < p["n"] % 5, body, (0, fn(p)))

    return {
        "jit": jax.jit(fn),
        "closed over": jax.jit(lambda p: (fn(p), p["x"] + array)),
        "scan": scanned,
        "while": looped,
        "cond": lambda p: lax.cond(p["n"] > 9, fn, lambda q: fn({**q, "n": 2}), p),
        "checkpoint": jax.checkpoint(fn),
        "ep.cond": lambda p: ep.cond(
            lambda x: x["n"] > 9, lambda x: fn(x)[0], lambda x: 2 * fn(x)[0]
        )(p),
        "refill": ep.refill(
            lambda p: (0, fn(p)),
            lambda p, c: c[0] < p["n"] % 7,
            lambda p, c: (c[0] + 1, fn({**p, "n": c[0]})),
            lambda p, c: c,
        ),
    }[how]


@pytest.mark.parametrize(
    "how",
    "jit|closed over|scan|while|cond|checkpoint|ep.cond|refill".split("|"),
)
def test_a_loop_inside_of_anything_gives_what_it_gives_by_itself(how):
    given = points(40, most=30)
    fn = within(reference(*parts("whole")), how)
    swept = ep.sweep(fn, space_of(given), batch_size=16).values
    expected = jax.tree.map(lambda *rows: np.stack(rows), *map(fn, rows_of(given)))
    for x, y in zip(jax.tree.leaves(swept), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)


def rows_of(given):
    return [{k: v[i] for k, v in given.items()} for i in range(len(given["n"]))]


@given(st.sampled_from(sorted(STEPS)), st.sampled_from([1, 17, 90]), st.integers(0, 99))
def test_a_sweep_gives_what_the_loop_of_each_point_gives(name, size, seed):
    given = points(size, seed)
    fn = reference(*parts(name))
    results = [
        ep.sweep(fn, space_of(given), batch_size=8, mesh=make_mesh(n), order_by=cost)
        for n, cost in ((1, None), (8, None), (2, given["n"]))
    ]
    for result in results[1:]:
        equal(result.values, results[0].values)
    expected = jax.jit(jax.vmap(fn))(given)
    for x, y in zip(
        jax.tree.leaves(results[0].values), jax.tree.leaves(expected), strict=True
    ):
        np.testing.assert_allclose(x, y, rtol=1e-4)


@given(st.sampled_from(sorted(STEPS)), st.sampled_from([1, 200]), st.integers(0, 99))
def test_refilled_lanes_have_the_bits_of_the_plain_loop(name, size, seed):
    given = points(size, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes, "_LEAST_LANES", 7)
        refilled = jax.jit(jax.vmap(ep.refill(*parts(name))))(given)
    equal(refilled, jax.jit(jax.vmap(reference(*parts(name))))(given))


def test_steps_after_the_end_do_no_harm():
    def fn(n):  # the next step would divide by zero, the one after take a bad root
        step = lambda c: (c[0] + 1, c[1] + jnp.sqrt(1 / (n - c[0])))  # noqa: E731
        return lax.while_loop(lambda c: c[0] < n, step, (0.0, 0.0))[1]

    assert is_quick(*loop_of(fn))
    with jax.debug_nans(True):
        found = ep.sweep(fn, ep.Values([1.0, 2.0, 5.0, 6.0]), batch_size=2).values
    expected = [sum(1 / np.sqrt(k) for k in range(1, n + 1)) for n in (1, 2, 5, 6)]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def loop_of(fn):
    (eqn,) = [e for e in jax.make_jaxpr(fn)(1.0).eqns if e.primitive.name == "while"]
    return eqn.params["cond_jaxpr"], eqn.params["body_jaxpr"]
