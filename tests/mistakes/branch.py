"""Stages of which some run: `cond`, `switch`, `gated`."""

import jax.numpy as jnp
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import key, ones

BRANCH = {
    ValueError: {
        "`jnp.any`": lambda: ep.cond(lambda x: x > 0, sin)(ones(3)),
        "returns bool": lambda: ep.cond(lambda x: 1, sin)(ones(3)),
        "one after the selector": lambda: ep.switch(jnp.argmax),
        "jnp.argmax": lambda: ep.switch(lambda x: 0.0, sin)(ones(3)),
        "`cond`": lambda: ep.switch(lambda x: x[0] > 0, sin)(ones(3)),
        "Rename the stage": lambda: ep.switch(jnp.argmax, {"selector": jnp.sin}),
        "Give at least one": lambda: ep.gated(sin, gates=()),
        "one gate per stage": lambda: ep.gated(sin, gates=[cos] * 2),
        "for each name": lambda: ep.gated({"a": sin}, gates={"b": sin}),
        "both by position": lambda: ep.gated(sin, gates={"a": sin}),
    },
    ep.StructureError: {
        "same structure": lambda: ep.cond(lambda x: True, jnp.sum)(ones(3)),
        "the same structure, shapes": lambda: ep.switch(lambda x: 0, sin, jnp.sum)(
            ones(3)
        ),
    },
    TypeError: {
        r"`gates=\(gate,\)`": lambda: ep.gated(sin, gates=cos),
        "Apply the stages to the other entries": lambda: ep.gated(
            lambda x: key(), gates=[jnp.all], merge="mean"
        )(ones(3) > 0),
    },
}
