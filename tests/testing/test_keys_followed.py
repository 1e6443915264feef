"""A key is followed by whatever way JAX offers, and by ways that nobody knows yet.

If this fails with a warning on another JAX, its operations are unknown to the law of
keys, which then is off for stages that use them.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import Primitive
from support.key_law import (
    KEYS,
    draw,
    each_with_one_kind,
    found,
    normal,
    uniform,
    unpacked,
)


def indexed(key):
    keys = jr.split(key, 3)
    return keys[0], keys[-1]


def iterated(key):
    return tuple(k for k in jr.split(key, 2))


def sliced(key):
    keys = jr.split(key, 4)[1:3]
    return keys[0], keys[1]


def taken(key):
    keys = jnp.take(jr.split(key, 3), jnp.array([2, 0]), axis=0)
    return keys[0], keys[1]


def at_a_traced_place(key):
    keys = jr.split(key, 3)
    place = lax.convert_element_type(uniform(jr.fold_in(key, 9)) * 0, int)
    return keys[place], keys[place + 1]


def in_two_dimensions(key):
    keys = jr.split(key, (2, 2))
    return keys[0, 1], keys[1, 0]


def turned(key):
    keys = jnp.flip(jr.split(key, (2, 3)).swapaxes(0, 1))
    return keys[0, 0], keys[2, 1]


def joined(key):
    a, b = jr.split(key)
    keys = jnp.concatenate([jnp.stack([a]), jnp.expand_dims(b, 0)])
    return keys[0], keys[1]


def folded(key):
    return jr.fold_in(key, 0), jr.fold_in(key, 1)


def written(key):
    keys = jr.split(key, 2)
    keys = keys.at[0].set(jr.fold_in(key, 7))
    return keys[0], keys[1]


def by_a_scan(key):
    def step(key, _):
        return unpacked(key)

    rest, keys = lax.scan(step, key, None, 3)
    return rest, keys[1]


def by_a_loop(key):
    def step(_, key):
        return jr.split(key, 2)[0]

    return lax.fori_loop(0, 3, step, key), jr.fold_in(key, 9)


def chosen(key):
    a, b = unpacked(key)
    return lax.cond(jr.key_data(key).sum() > 0, lambda: a, lambda: b), jr.fold_in(
        key, 9
    )


def through_raw_data(key):
    a, b = unpacked(key)
    if not jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return jr.wrap_key_data(a), jr.wrap_key_data(b)
    return tuple(jr.wrap_key_data(jr.key_data(k), impl=jr.key_impl(k)) for k in (a, b))


def jitted(key):
    return jax.jit(unpacked)(key)


def checkpointed(key):
    return jax.checkpoint(unpacked)(key)


def vmapped(key):
    keys = jax.vmap(unpacked)(jr.split(key, 2))
    return keys[0][0], keys[1][1]


def selected(key):
    a, b = unpacked(key)
    return (b if a.dtype == jnp.uint32 else jnp.where(True, a, b)), jr.fold_in(key, 9)


def behind_a_barrier(key):
    return lax.optimization_barrier(unpacked(key))


WAYS = [
    unpacked, indexed, iterated, sliced, taken, at_a_traced_place, in_two_dimensions,
    turned, joined, folded, written, by_a_scan, by_a_loop, chosen, through_raw_data,
    jitted, checkpointed, vmapped, selected, behind_a_barrier,
]  # fmt: skip


@pytest.mark.parametrize(("way", "kind"), each_with_one_kind(WAYS))
def test_a_key_is_followed_by_whatever_way_it_goes(way, kind):
    right = lambda x, *, key: x * draw(*way(key))  # noqa: E731
    wrong = lambda x, *, key: x * draw(way(key)[0])  # noqa: E731
    assert found(right, KEYS[kind]) is None
    assert "key_law.py" in found(wrong, KEYS[kind])


def _unknown(name, run, shape_of):
    primitive = Primitive(name)
    primitive.def_impl(run)
    primitive.def_abstract_eval(shape_of)
    return primitive.bind


_moves = _unknown("moves_a_key", lambda key: key, lambda key: key)
_draws = _unknown(
    "draws_from_a_key",
    lambda key: normal(key),
    lambda key: ShapedArray((), jnp.float32),
)


def test_an_unknown_operation_switches_nothing_off():
    assert found(lambda x, *, key: x * normal(_moves(key)), KEYS["new"]) is None
    for wrong in (
        lambda x, *, key: x * normal(_moves(key)) * normal(key),
        lambda x, *, key: x * _draws(key) * normal(key),
    ):
        assert "one key is used" in found(wrong, KEYS["new"])


def test_an_operation_that_hides_a_program_is_named():
    def solves(x, *, key):
        def inverse(_, b):
            return b * (1 + uniform(key))

        return lax.custom_linear_solve(lambda v: v, x, inverse, symmetric=True)

    with pytest.warns(
        UserWarning, match="inside `custom_linear_solve`.*that draws alo"
    ):
        assert found(solves, KEYS["new"]) is None
