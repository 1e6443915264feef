"""`vmap`."""

import functools as ft

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.experimental.sparse import BCOO

import eqx_pipe as ep

from .common import key, ones, sin


def total(x):
    return jax.lax.psum(x, "lanes")


def pair(xs, ys):
    return xs


def mesh():
    return jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])


VMAP = {
    TypeError: {
        "Make it dense by": lambda: ep.vmap(sin)(BCOO.fromdense(ones(4))),
        "Return its entries as an array": lambda: ep.vmap(
            ft.partial(BCOO.fromdense, nse=2)
        )(ones(2, 2)),
        "holds 0.5.*Give an integer, `None`": lambda: ep.vmap(sin, {"a": 0.5}),
    },
    ValueError: {
        r"`.args.0` is float32\[3\]: 3 along axis 0.*`.args.1` is .*\[4\]: 4": lambda: (
            ep.vmap(pair)(ones(3), ones(4))
        ),
        r"`.args.0.a` is .*: 3 along axis -1.*`.args.1` is .*: 4": lambda: ep.vmap(
            pair, ({"a": -1}, 0)
        )({"a": ones(2, 3)}, ones(4)),
        "`axis_size` is 5.*use `None` in": lambda: ep.vmap(sin, axis_size=5)(ones(3)),
        "has no axis 0": lambda: ep.vmap(sin)(jnp.ones(())),
        "has no axis 2": lambda: ep.vmap(sin, 2)(ones(3, 3)),
        "one integer for all": lambda: ep.vmap(pair, (0, 0))(ones(3)),
        "which is not a prefix of the arguments": lambda: ep.vmap(sin, ({"a": 0},))(
            ones(3)
        ),
        "which is not a prefix of the output": lambda: ep.vmap(sin, 0, {"a": 0})(
            ones(3)
        ),
        "give `axis_size`": lambda: ep.vmap(sin, None)(ones(3)),
        "Leave out `axis_name`, or": lambda: ep.vmap(
            total, axis_name="lanes", batch_size=2
        )(ones(3)),
        "2 devices are several batches": lambda: ep.vmap(
            total, axis_name="lanes", mesh=mesh()
        )(ones(4)),
        "Return numbers, or leave out `reduce`": lambda: ep.vmap(
            lambda k: k, reduce="sum"
        )(jr.split(key(), 3)),
        "Leave out one of them": lambda: ep.vmap(sin, 0, 1, reduce="sum"),
    },
}
