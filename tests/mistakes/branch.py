"""Stages of which some run: `cond`, `switch`, `gated`."""

import jax.numpy as jnp
from equinox import nn
from jax.numpy import cos, sin

import eqx_pipe as ep

from .common import key, ones

BRANCH = [
    ("cond 3", lambda: ep.cond(3, sin), TypeError, "A stage is a callable"),
    ("a class", lambda: ep.cond(cos, nn.Linear), TypeError, "Make an instance"),
    ("each", lambda: ep.cond(lambda x: x > 0, sin)(ones(3)), ValueError, "`jnp.any`"),
    ("1", lambda: ep.cond(lambda x: 1, sin)(ones(3)), ValueError, "returns bool"),
    (
        "another shape",
        lambda: ep.cond(lambda x: True, jnp.sum)(ones(3)),
        ep.StructureError,
        "same structure",
    ),
    ("no branch", lambda: ep.switch(jnp.argmax), ValueError, "one after the selector"),
    ("eror", lambda: ep.switch(cos, sin, bounds="eror"), ValueError, "mean `error`"),
    ("0.0", lambda: ep.switch(lambda x: 0.0, sin)(ones(3)), ValueError, "jnp.argmax"),
    ("bool", lambda: ep.switch(lambda x: x[0] > 0, sin)(ones(3)), ValueError, "`cond`"),
    (
        "branches that differ",
        lambda: ep.switch(lambda x: 0, sin, jnp.sum)(ones(3)),
        ep.StructureError,
        "same structure",
    ),
    (
        "a stage named selector",
        lambda: ep.switch(jnp.argmax, {"selector": jnp.sin}),
        ValueError,
        "Rename the stage",
    ),
    ("no stages", lambda: ep.gated(gates=()), ValueError, "Give at least one"),
    ("no gates", lambda: ep.gated(sin, gates=()), ValueError, "Give at least one"),
    ("one gate", lambda: ep.gated(sin, gates=cos), TypeError, r"`gates=\(gate,\)`"),
    ("two", lambda: ep.gated(sin, gates=[cos] * 2), ValueError, "one gate per stage"),
    ("summ", lambda: ep.gated(sin, gates=[cos], merge="summ"), ValueError, "`sum`"),
    ("zero", lambda: ep.gated(sin, gates=[cos], closed="zero"), ValueError, "`zeros`"),
    ("dict", lambda: ep.gated(sin, gates=[cos], merge="dict"), ValueError, "mapping"),
    (
        "a key out of a branch",
        lambda: ep.gated(lambda x: key(), gates=[jnp.all], merge="mean")(ones(3) > 0),
        TypeError,
        "Keep it out of the stages",
    ),
    ("b", lambda: ep.gated({"a": sin}, gates={"b": sin}), ValueError, "for each name"),
    ("mixed", lambda: ep.gated(sin, gates={"a": sin}), ValueError, "both by position"),
    (
        "gates",
        lambda: ep.gated({"gates": sin}, gates={"gates": sin}),
        ValueError,
        "Rename",
    ),
    (
        "nothing to fall back on",
        lambda: ep.gated(jnp.sum, gates=[lambda x: True], merge="concat")(ones(3)),
        ep.StructureError,
        'closed="zeros"',
    ),
]
