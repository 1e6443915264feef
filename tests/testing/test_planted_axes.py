"""Broken axes, spaces and swept functions: each is caught by the law it breaks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.broken import ForgetsItsShift, mixes_lanes, reverses_lanes

import eqx_pipe as ep
import eqx_pipe.testing as ept

KEY = jr.key(0)


class OwnAxis(ep.Axis):
    """An axis that computes its values by a function."""

    fn: object = eqx.field(static=True)
    n: int = 4
    dim: str | None = None

    def __len__(self):
        return self.n

    def value(self, i, key):
        return self.fn(i, key)


class ForgetfulAxis(ep.Axis):
    """An axis with a part that flattening leaves behind."""

    inner: ForgetsItsShift
    dim: str | None = None

    def __len__(self):
        return 4

    def value(self, i, key):
        return i * self.inner.scale.astype(jnp.int32) + int(self.inner.shift)


@jax.tree_util.register_pytree_node_class
class Reverses:
    """Flattening turns the order round."""

    def __init__(self, *numbers):
        self.numbers = numbers

    def tree_flatten(self):
        return self.numbers[::-1], None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)


class ReversedAxis(ep.Axis):
    inner: Reverses
    dim: str | None = None

    def __len__(self):
        return 2

    def value(self, i, key):
        return jnp.stack(self.inner.numbers)[i]


_generator = np.random.default_rng(0)
_calls = iter(range(10**9))

AXES = {
    "no values": (OwnAxis(lambda i, key: i, n=0), "it has a length"),
    "an empty dim": (OwnAxis(lambda i, key: i, dim=""), "a dim"),
    "shapes that differ": (OwnAxis(lambda i, key: jnp.ones(int(i) + 1)), "in form"),
    "dtypes that differ": (
        OwnAxis(lambda i, key: i if i == 0 else i.astype(jnp.float32)),
        "in form",
    ),
    "another each time": (OwnAxis(lambda i, key: i + next(_calls)), "each time"),
    "Python branches": (OwnAxis(lambda i, key: i if i < 2 else 2 * i), "traced"),
    "a Python list": (OwnAxis(lambda i, key: jnp.int32([1, 2, 3, 4][i])), "traced"),
    "another when traced": (
        OwnAxis(lambda i, key: i + jnp.int32(isinstance(i, jax.core.Tracer))),
        "traced",
    ),
    "forgets when flattened": (
        ForgetfulAxis(ForgetsItsShift(jnp.ones(()), 2.0)),
        "flattening keeps it",
    ),
    "reversed when flattened": (
        ReversedAxis(Reverses(jnp.float32(1), jnp.float32(2))),
        "flattening keeps it",
    ),
    "a split key behind the back": (
        OwnAxis(lambda i, key: jr.bits(jr.split(key, 4)[i])),
        "without a key",
    ),
    "draws on the host": (
        OwnAxis(lambda i, key: jnp.float32(_generator.normal())),
        "each time",
    ),
    "a key behind the back": (
        OwnAxis(lambda i, key: jr.normal(jr.fold_in(key, i))),
        "without a key",
    ),
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", AXES)
def test_a_broken_axis_is_caught(name):
    axis, rule = AXES[name]
    key = KEY if "behind the back" in name else None
    with pytest.raises(AssertionError, match="check_axis.*of an axis") as caught:
        ept.check_axis(axis, key=key)
    assert rule in str(caught.value)


class Draws(OwnAxis):
    """An axis that draws."""

    @property
    def needs_key(self):
        return True


DRAWN = {
    "blind for the position": Draws(lambda i, key: jr.normal(key)),
    "blind for the key": Draws(lambda i, key: jr.normal(jr.fold_in(KEY, i))),
}


@pytest.mark.parametrize("name", DRAWN)
def test_a_draw_that_sees_too_little_is_caught(name):
    with pytest.raises(AssertionError, match="the law `draws` of an axis"):
        ept.check_axis(DRAWN[name], key=KEY)


def test_a_draw_of_few_values_is_not():
    coin = Draws(lambda i, key: jr.bernoulli(jr.fold_in(key, i), 0.1), n=2)
    ept.check_axis(coin, key=KEY)


# What only a reference tells: consistent, and wrong. At i of 4 there should be i / 3.
WRONG = {
    "a clamped table": lambda i, key: jnp.minimum(i, 2).astype(jnp.float32) / 3,
    "an end that is missed": lambda i, key: i.astype(jnp.float32) / 4,
    "off by one": lambda i, key: (i + 1).astype(jnp.float32) / 3,
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_axis_is_caught_by_a_reference(name):
    axis = OwnAxis(WRONG[name])
    ept.check_axis(axis)
    with pytest.raises(AssertionError, match="the law `reference` of an axis"):
        ept.check_axis(axis, reference=lambda i: i / 3)
    ept.check_axis(ep.Linspace(0, 1, 4), reference=np.linspace(0, 1, 4).__getitem__)


class LateSpace(ep.Space):
    """Traced, its points come one too late."""

    def point(self, i):
        return super().point(i + isinstance(i, jax.core.Tracer))


class PlainSpace(ep.Space):
    """Its points cannot be traced."""

    def point(self, i):
        return super().point(int(i))


class CountingSpace(ep.Space):
    """Another point each time."""

    def point(self, i):
        return {**super().point(i), "count": jnp.int32(next(_calls))}


class LongSpace(ep.Space):
    """One point more than its dims make."""

    @property
    def size(self):
        return super().size + 1


class ShortSlices(ep.Space):
    """Slices that end one too early."""

    def __getitem__(self, i):
        return super().__getitem__(slice(i.start, -1))


SPACES = {
    "late when traced": (LateSpace, "can be traced"),
    "cannot be traced": (PlainSpace, "can be traced"),
    "another point each time": (CountingSpace, "each time"),
    "one point too many": (LongSpace, "product of its dims"),
    "short slices": (ShortSlices, "a slice holds"),
}


@pytest.mark.one_of(2, rest=1)
@pytest.mark.parametrize("name", SPACES)
def test_a_broken_space_is_caught(name):
    make, rule = SPACES[name]
    with pytest.raises(AssertionError, match="check_space.*of a space") as caught:
        ept.check_space(make({"a": ep.Linspace(0, 1, 4)}))
    assert rule in str(caught.value)


def test_a_broken_axis_in_a_space_is_caught():
    with pytest.raises(AssertionError, match="check_axis.*each time"):
        ept.check_space({"a": [OwnAxis(lambda i, key: i + next(_calls))]})


SWEPT = {
    "lanes that look at each other": lambda p: mixes_lanes(p["a"]),
    "lanes in another order": lambda p: reverses_lanes(p["a"]),
    "another each time": lambda p: p["a"] + next(_calls),
    "Python branches": lambda p: p["a"] if p["a"] > 0.5 else -p["a"],
}


@pytest.mark.one_of(2)
@pytest.mark.parametrize("name", SWEPT)
def test_a_broken_swept_function_is_caught(name):
    with pytest.raises(AssertionError, match="check_sweep"):
        ept.check_sweep(SWEPT[name], {"a": ep.Linspace(0.0, 1.0, 4)})
