"""The cost of waiting: the steps of loops that are needed, and those executed."""

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from support.helpers import few, slow_unless

import eqx_pipe as ep

ONE = jax.make_mesh((1,), ("x",), devices=jax.devices()[:1])


def times(n, body=lambda x: x + 0.5, x=1.0):
    """Apply a function `n` times."""
    n, x = jnp.int32(n), jnp.float32(x)
    return lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, body(c[1])), (0, x))


def plain(n):
    return times(n)[1]


def fixed(n):
    """Run a loop of Equinox, whose lanes go on together."""
    loop = eqxi.while_loop(
        lambda c: c[0] < n,
        lambda c: (c[0] + 1, times(c[0])[1] + c[1]),
        (jnp.int32(0), jnp.float32(0)),
        kind="checkpointed",
        max_steps=100,
    )
    return loop[1]


def nested(n):
    count = lambda c: (c[0] + 1, c[1] + times(n - c[0])[1])  # noqa: E731
    return lax.while_loop(lambda c: c[0] < n, count, (0, jnp.float32(0)))[1]


def scanned(n):
    step = jax.jit(lambda c, k: (c + times(n * k)[1], None))
    return lax.scan(step, jnp.float32(0), jnp.arange(3))[0]


def branched(n):
    return lax.cond(n > 2, lambda: times(n)[1], lambda: times(3 * n)[1])


def chosen(n):
    double = eqx.nn.Lambda(lambda x: times(2 * x)[1])
    return ep.cond(lambda x: x > 2, plain, double)(n)


WEIGHTS = jnp.array([0.25, 0.25])


def several(n):
    """Loops side by side, which are one loop; its body closes over an array."""
    more = jax.jit(lambda x: x + WEIGHTS.sum())
    return jax.vmap(lambda k: times(n - k, more)[1])(jnp.arange(3)).sum()


def of_nested(batch):
    """Return the steps of all lanes: in each round those of the slowest."""
    most = max(batch)
    # Those that have ended are where they were, and would go on for no step.
    rounds = [max(max(0, n - min(k, n)) for n in batch) for k in range(most)]
    return most + sum(rounds)


# The steps that a point takes alone, and those of a batch.
CASES = {
    plain: (lambda n: n, max),
    fixed: (lambda n: n + n * (n - 1) // 2, lambda b: max(b) + sum(range(max(b)))),
    nested: (lambda n: n + n * (n + 1) // 2, of_nested),
    scanned: (lambda n: 3 * n, lambda b: 3 * max(b)),
    several: (lambda n: n, max),
    # Both branches run in all lanes if one of them differs.
    branched: (
        lambda n: n if n > 2 else 3 * n,
        lambda b: max(b) * (max(b) > 2) + 3 * max(b) * (min(b) <= 2),
    ),
}


@few
@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
@given(st.lists(st.integers(0, 6), min_size=7, max_size=7))
def test_steps_are_those_of_the_loops(fn, trips):
    alone, together = CASES[fn]
    result = ep.sweep(
        fn, ep.Values(np.int32(trips)), batch_size=3, mesh=ONE, count_steps=True
    )
    executed = [together(trips[i // 3 * 3 :][:3]) for i in range(7)]
    assert result.steps.needed.tolist() == [*map(alone, trips)]
    assert result.steps.executed.tolist() == executed
    needed = sum(map(alone, trips))
    assert result.waste == (sum(executed) / needed if needed else 1.0)


TRIPS = [4, 1, 6, 2, 0]


@pytest.mark.parametrize(
    "fn", slow_unless({chosen, several}, [chosen, several, nested])
)
def test_values_and_batches_are_those_of_a_sweep(fn):
    space = ep.Values(np.int32(TRIPS))
    plain_sweep = ep.sweep(fn, space)
    counted = ep.sweep(fn, space, count_steps=True)
    assert counted.batch_size == plain_sweep.batch_size
    np.testing.assert_allclose(counted.values, plain_sweep.values, rtol=2e-5)
    assert plain_sweep.steps is None and plain_sweep.waste is None
    if fn is several:
        by_hand = [sum(1 + max(0, n - k) / 2 for k in range(3)) for n in TRIPS]
        assert counted.values.tolist() == by_hand


def test_lanes_that_choose_alike_run_one_branch():
    same = ep.sweep(chosen, ep.Values(np.int32([3, 5])), mesh=ONE, count_steps=True)
    assert same.steps.executed.tolist() == [5, 5]


def test_the_repr_and_the_attributes_have_the_steps():
    space = {"n": ep.Values([1, 2, 9, 4]), "kind": ep.Static([1, 2])}
    result = ep.sweep(
        lambda p: times(p["n"] * p["kind"])[1],
        space,
        order_by=np.arange(8),
        batch_size=2,
        mesh=ONE,
        count_steps=True,
    )
    assert result.steps.needed.tolist() == [1, 2, 2, 4, 9, 18, 4, 8]
    assert result.steps.executed.tolist() == [2, 4, 2, 4, 9, 18, 9, 18]
    assert result[:2].steps.executed.tolist() == [2, 4]
    assert "1.38 steps for each one needed" in repr(result)
    attrs = result.to_xarray().attrs
    assert (attrs["steps_needed"], attrs["steps_executed"]) == (48, 66)
    assert attrs["waste"] == result.waste == 1.375


def test_points_that_fail():
    def fn(n):
        return times(eqx.error_if(n, n == 3, "three"))[1]

    result = ep.sweep(
        fn, ep.Values([5, 3, 2]), on_error="mark", mesh=ONE, count_steps=True
    )
    assert result.ok.tolist() == [True, False, True]
    assert result.steps.needed.tolist() == [5, 0, 2]
