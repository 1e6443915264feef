"""Errors of JAX with a note of ours, and of ours that name a stage or a record."""

import jax
import jax.numpy as jnp
from equinox import nn
from jax import random as jr

import eqx_pipe as ep

from .common import key, linear, ones
from .compose import Forgetful
from .data import source
from .sweep import sweep, vmap_space
from .views import swept


def reshaped(p):
    return jnp.ones(6).reshape(p["n"], -1).sum()


SIZES = {"n": ep.Static([2, 4])}

NOTES = {
    jax.errors.TracerBoolConversionError: {
        "`by` is vectorised over points.*`jnp.where`": lambda: swept().best(
            lambda y: y["loss"] if y["loss"] > 0.5 else -y["loss"]
        )
    },
    ep.MissingKeyError: {
        r"`a` .*`key=jax.random.key\(0\)`.*inference_mode": lambda: ep.chain(
            a=nn.Dropout(0.5)
        )(ones(3)),
        r"sweep\(..., key=jax.random.key": lambda: sweep(lambda x, key: x),
        "random.key": lambda: sweep(lambda x, key=None: jr.normal(key)),
        r"vmap_space\(..., key=jax.random.key": lambda: vmap_space(lambda x, key: x),
    },
    IndexError: {"an integer from -5 to 4": lambda: source()[5]},
    TypeError: {
        r"Return `\(y, state\)`": lambda: (lambda p, s: p(ones(3), s))(
            *nn.make_with_state(lambda: ep.chain(Forgetful()))()
        ),
        "equinox.filter_jit": lambda: hash(ep.chain(linear(key()))),
        "`fn` was traced for `n = 4`": lambda: sweep(reshaped, SIZES),
        "Use a plain integer, or `sweep`": lambda: vmap_space(reshaped, SIZES),
    },
}
