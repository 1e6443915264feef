"""One stage of each kind, to be described."""

import math

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from support.helpers import filled

import eqx_pipe as ep

KEY = jr.key(0)


def linear(key):
    return eqx.nn.Linear(3, 3, key=key)


def make_stages(key):
    return {
        "identity": eqx.nn.Identity(),
        "function": jnp.tanh,
        "linear": linear(key),
        "conv": eqx.nn.Conv2d(1, 2, 3, key=key),
        "norm": eqx.nn.BatchNorm(3, "batch", mode="batch"),
        "mlp": eqx.nn.MLP(3, 3, 4, 2, key=key),
        "attention": eqx.nn.MultiheadAttention(1, 3, key=key),
        "dropout": eqx.nn.Dropout(math.inf),
        "sequential": eqx.nn.Sequential([linear(key), eqx.nn.Lambda(jnp.sin)]),
        "empty": ep.chain(),
        "chain": ep.chain(a=linear(key), b=ep.chain(jnp.sin, linear(key))),
        "repeat": ep.repeat(lambda key: ep.repeat(linear, 2, key=key), 5, key=key),
        "none": ep.repeat(linear, 0, key=key),
        "batched": ep.batched(linear(key), in_axes=(0, None), axis_name="batch"),
        "graph": ep.graph(
            {"a": linear(key), "b": lambda p, q: p},
            {"a": [], "b": ["a", "input"]},
            ("b",),
        ),
        "parallel": ep.parallel({"a": linear(key), "b": jnp.sin}, merge="dict"),
        "merge": ep.parallel(jnp.sin, linear(key), merge=ep.chain(lambda ys: ys[0])),
        "stack": ep.parallel(jnp.sin, linear(key), merge=jnp.stack),
        "weighted": ep.weighted(linear(key), jnp.sin),
        "mixture": ep.weighted(
            linear(key), jnp.sin, weights=eqx.nn.Linear(3, 2, key=key)
        ),
        "gated": ep.gated(linear(key), jnp.sin, gates=(jnp.any, jnp.all)),
        "cond": ep.cond(jnp.any, linear(key)),
        "switch": ep.switch(jnp.argmax, linear(key), ep.chain(jnp.sin)),
        "at": ep.at(("a", 0), linear(key)),
        "half": linear(key).__class__(3, 2, dtype=jnp.bfloat16, key=key),
        "inverse": lambda x: 1 / x,
    }


stages = {
    **filled(make_stages, KEY),
    "spare": eqx.filter_eval_shape(linear, KEY),
}
