"""`vmap_space` agrees with `sweep`, and is a pure function."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.sharding import AxisType

import eqx_pipe as ep

SPACE = ep.Space({"b": ep.Linspace(0, 1, 5), "a": ep.Values([1.0, 2.0, 3.0])})


def noisy(point, key):
    return {"y": point["a"] * jnp.sin(point["b"]) + jr.normal(key), "n": 1}


def mesh(n, kind):
    return jax.make_mesh((n,), ("x",), axis_types=(kind,), devices=jax.devices()[:n])


MESHES = [None, (2, AxisType.Auto), (8, AxisType.Explicit)]


@pytest.mark.parametrize(
    ("on", "batch_size"),
    [(None, 2), pytest.param(MESHES[2], None, marks=pytest.mark.slow)],
)
def test_gradients_reach_axes_and_closed_over_values(on, batch_size):
    def total(weight, lo):
        space = {"b": ep.Linspace(lo, 1, 5), "a": ep.Values([1.0, 2.0])}
        fn = lambda p: jnp.sin(weight * p["b"]) * p["a"] * weight  # noqa: E731
        on_mesh = on and mesh(*on)
        return ep.vmap_space(fn, space, batch_size=batch_size, mesh=on_mesh).sum()

    def by_hand(weight, lo):
        t = jnp.linspace(0, 1, 5)
        b = lo * (1 - t) + t
        return 3 * jnp.sum(jnp.sin(weight * b) * weight)

    expected = jax.grad(by_hand, argnums=(0, 1))(1.5, 0.2)
    grad = jax.grad(total, argnums=(0, 1))
    np.testing.assert_allclose(jax.jit(grad)(1.5, 0.2), expected, rtol=1e-5)
    if on is not None and batch_size is None:
        np.testing.assert_allclose(grad(1.5, 0.2), expected, rtol=1e-5)


@pytest.mark.parametrize("on", MESHES[1:])
def test_it_works_under_the_users_mesh(on):
    expected = ep.sweep(noisy, SPACE, key=jr.key(1)).values["y"]
    with jax.set_mesh(mesh(*on)) as _:
        for given in (None, mesh(*on)):
            run = lambda key, m=given: ep.vmap_space(  # noqa: E731
                noisy, SPACE, key=key, mesh=m
            )["y"]
            np.testing.assert_allclose(jax.jit(run)(jr.key(1)), expected, rtol=1e-6)


def test_it_works_under_vmap_and_on_a_traced_space():
    def run(scale, space):
        return ep.vmap_space(lambda p: scale * p["a"], space)

    got = jax.jit(jax.vmap(run, in_axes=(0, None)))(jnp.arange(3.0), SPACE)
    assert got.shape == (3, 15)
    np.testing.assert_allclose(got[2], 2 * np.tile([1, 2, 3], 5))


def test_an_automatic_batch_size_is_refused(unchecked):
    with pytest.raises(TypeError, match="`batch_size` is 'auto'"):
        ep.vmap_space(noisy, SPACE, batch_size="auto")
