"""Derivatives of loops whose lanes are refilled: those of the plain loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.loops import points, reference, refilled

import eqx_pipe as ep


def gradients(make):
    loop = make(
        lambda p: (0, p["x"], jnp.float32(1)),
        lambda p, c: c[0] < p["n"],
        lambda p, c: (c[0] + 1, jnp.sin(c[1] * p["a"]) + p["x"], c[2] * 1.5),
        lambda p, c: c[1] ** 2 + c[2],
    )
    return lambda x, a, n: loop({"x": x, "a": a, "n": n})


@pytest.mark.parametrize("which", range(4))
def test_forward_mode_is_that_of_the_loop(which):
    n, x = points(20)["n"], points(20)["x"]
    a = jnp.float32(0.7)

    def results(make):
        fn = gradients(make)
        over = jax.vmap(fn, (0, None, 0))
        return [
            lambda: jax.jvp(lambda x, a: over(x, a, n), (x, a), (x + 1, a)),
            lambda: jax.vmap(jax.jacfwd(fn, (0, 1)), (0, None, 0))(x, a, n),
            lambda: jax.jacfwd(lambda a: over(x, a, n))(a),
            lambda: jax.jacfwd(jax.jacfwd(lambda a: over(x, a, n)))(a),
        ][which]

    ours, plain = jax.jit(results(refilled))(), jax.jit(results(reference))()
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_forward_mode_of_python_numbers():
    def results(make):
        def closed(a):
            return make(
                lambda p: 1.0,
                lambda p, c: c < p,
                lambda p, c: c + a * p,
                lambda p, c: c * a,
            )

        xs = jnp.arange(5.0)
        return (
            jax.jvp(lambda a: jax.vmap(closed(a))(xs), (2.0,), (1.0,)),
            jax.vmap(lambda x: jax.jvp(lambda a: closed(a)(x), (2.0,), (1.0,)))(xs),
        )

    ours, plain = results(refilled), results(reference)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)


def test_reverse_mode_raises_the_error_of_jax():
    fn = gradients(refilled)
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(fn)(jnp.float32(1), jnp.float32(0.5), jnp.int32(3))
    xs, n = points(20)["x"], points(20)["n"]
    with pytest.raises(ValueError, match="Reverse-mode"):
        jax.grad(lambda a: jax.vmap(fn, (0, None, 0))(xs, a, n).sum())(jnp.float32(1))
    # A loop without differentiated inputs is a constant.
    both = lambda x: x**2 * fn(jnp.float32(1), jnp.float32(0.5), jnp.int32(3))  # noqa: E731
    assert jnp.isfinite(jax.grad(both)(jnp.float32(2)))


def test_own_rules_are_kept():
    @jax.custom_jvp
    def fn(x):
        return jax.lax.while_loop(lambda c: c < 9, lambda c: c + x, x)

    fn.defjvps(lambda t, out, x: 7 * t)
    over = jax.vmap(ep.refill(fn))
    assert jax.grad(lambda x: over(x).sum())(jnp.ones(3)).tolist() == [7, 7, 7]
