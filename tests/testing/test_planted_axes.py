"""Broken axes: each is caught by the law it breaks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from support.broken import ForgetsItsShift

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


_calls = iter(range(10**9))

AXES = {
    "no values": (OwnAxis(lambda i, key: i, n=0), "it has a length"),
    "shapes that differ": (OwnAxis(lambda i, key: jnp.ones(int(i) + 1)), "in form"),
    "dtypes that differ": (
        OwnAxis(lambda i, key: i if i == 0 else i.astype(jnp.float32)),
        "in form",
    ),
    "another each time": (OwnAxis(lambda i, key: i + next(_calls)), "each time"),
    "Python branches": (OwnAxis(lambda i, key: i if i < 2 else 2 * i), "traced"),
    "another when traced": (
        OwnAxis(lambda i, key: i + jnp.int32(isinstance(i, jax.core.Tracer))),
        "traced",
    ),
    "forgets when flattened": (
        ForgetfulAxis(ForgetsItsShift(jnp.ones(()), 2.0)),
        "flattening keeps it",
    ),
    "a key behind the back": (
        OwnAxis(lambda i, key: jr.normal(jr.fold_in(key, i))),
        "without a key",
    ),
}


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


# Consistent, and wrong: only a reference shows it. The value at i of 4 should be i / 3.
def test_a_wrong_axis_is_caught_by_a_reference():
    axis = OwnAxis(lambda i, key: (i + 1).astype(jnp.float32) / 3)
    ept.check_axis(axis)
    with pytest.raises(AssertionError, match="the law `reference` of an axis"):
        ept.check_axis(axis, reference=lambda i: i / 3)
    ept.check_axis(ep.Linspace(0, 1, 4), reference=np.linspace(0, 1, 4).__getitem__)
