"""Every axis, every space, and sweeps over them keep the laws.

The tables have axes and spaces that the strategies do not draw.
"""

import hypothesis as hp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from support.helpers import few, slow_unless
from support.laws import check_space, check_sweep
from support.strategies import axes, spaces

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(3)


class Powers(ep.Axis):
    """A user's own axis."""

    base: jax.Array
    n: int
    dim: str | None = None

    def __len__(self):
        return self.n

    def value(self, i, key):
        return {"power": self.base ** i.astype(jnp.float32), "i": i}


class Uniform:
    """A distribution with a method `sample`, as those of NumPyro have."""

    def sample(self, key, sample_shape=()):
        return jr.uniform(key, sample_shape)


AXES = {
    "a long linspace": lambda: ep.Linspace(0.0, 1.0, 2**31 - 1),
    "keys": lambda: ep.Values(jr.split(jr.key(0), 4)),
    "static": lambda: ep.Static(["relu", jnp.tanh, 3]),
    "mapped draws": lambda: ep.Mapped(jnp.exp, ep.Random(jr.normal, 4)),
    "sobol": lambda: ep.sobol(ep.Uniform(0, 2), 5).tree,
    "own": lambda: Powers(jnp.float32(2), 4),
    # Slow from here on.
    "linspace of arrays": lambda: ep.Linspace(jnp.zeros(3), jnp.arange(3.0), 4),
    "negative geomspace": lambda: ep.Geomspace(-1.0, -8.0, 4),
    "complex numbers": lambda: ep.Values(jnp.array([1j, 2.0])),
    "a distribution": lambda: ep.Random(Uniform(), 4),
    "seeds": lambda: ep.Seeds(3),
    "mapped to a tree": lambda: ep.Mapped(lambda v: (v, -v), ep.Values([1, 2])),
}


@pytest.mark.parametrize("name", slow_unless(list(AXES)[:6], AXES))
def test_each_axis_keeps_every_law(name):
    axis = AXES[name]()
    ept.check_axis(axis, key=KEY if axis.needs_key else None)
    # So a `tree_map` over a space, as an optimizer or a cast does, changes none.
    leaves = jax.tree.leaves(axis)
    assert name == "own" or not any(isinstance(x, int | str) for x in leaves)


@hp.given(st.data())
def test_every_drawn_axis_keeps_every_law(data):
    axis = data.draw(axes(static=True), label="axis")
    ept.check_axis(axis, key=KEY if axis.needs_key else None)


SPACES = {
    "designs": lambda: {
        "sobol": ep.sobol([ep.Uniform(0, 1), ep.Uniform(1, 2)], 4, dim="s").tree,
        "cube": ep.sobol(ep.Uniform(0, 1), 3, dim="cube").tree,
    },
    "slice": lambda: ep.Space({"a": ep.Values(range(5)), "b": ep.Values([1, 2])})[
        7:1:-2
    ],
    "keys": lambda: {
        "key": ep.Values(jr.split(jr.key(0), 2)),
        "a": ep.Linspace(0, 1, 2),
    },
    "huge": lambda: {"a": ep.Linspace(0, 1, 2**31 - 1), "b": ep.Linspace(0, 1, 2**30)},
}


@pytest.mark.parametrize("name", slow_unless({"slice", "huge"}, SPACES))
def test_each_space_keeps_every_law(name):
    check_space(SPACES[name]())


@few
@hp.given(st.data())
def test_every_drawn_space_keeps_every_law(data):
    check_space(data.draw(spaces(static=True), label="space"))


def total(point):
    arrays = [jnp.asarray(v) for v in jax.tree.leaves(point) if hasattr(v, "dtype")]
    return {"sum": sum(jnp.sum(v.astype(jnp.float32)) for v in arrays), "point": arrays}


def noisy(point, key):
    return total(point)["sum"] + jr.normal(key)


def looping(point):
    """Loop until a time that differs from point to point."""
    start = jnp.abs(total(point)["sum"]) + 1
    return jax.lax.while_loop(lambda v: v < 30, lambda v: 2 * v + 1, start)


refilled = ep.refill(looping)


def piped(point):
    double = ep.cond(lambda v: v > 0, lambda v: 2 * v, jnp.sin)
    return ep.chain(double, jnp.tanh)(total(point)["sum"])


@few
@hp.given(st.data())
def test_a_sweep_of_every_drawn_space_is_its_definition(data):
    space = data.draw(spaces(max_axes=2, static=True), label="space")
    fns = [total, noisy, looping, refilled, piped]
    fn = data.draw(st.sampled_from(fns), label="fn")
    check_sweep(fn, space, key=KEY if fn is noisy else None)
