"""One stage in another: `at`, `batched`, `repeat`, `outputs`."""

import jax
import jax.numpy as jnp
from equinox import nn
from jax.numpy import sin

import eqx_pipe as ep

from .common import Counter, block, key, linear, ones, stack

FOCUS = {
    TypeError: {"a tuple of them read as a path": lambda: ep.at(["a"], sin)},
    ep.StructureError: {
        "n `image`": lambda: ep.at("imag", sin)({"image": 1}),
        "Known names: `0`, `1`": lambda: ep.at(2, sin)((1, 2)),
        "`a.b`.*Known names: `a`": lambda: ep.at(("a", "b"), sin)({"a": ones(2)}),
    },
}

BATCHED = {
    TypeError: {"Give an integer": lambda: ep.batched(sin, in_axes=True)},
    ValueError: {
        "Give the axis": lambda: ep.batched(sin, in_axes=None),
        "by a collective over `axis_name`": lambda: (
            lambda p, s: p(jnp.arange(3.0), s)
        )(*nn.make_with_state(lambda: ep.batched(Counter()))()),
    },
    ep.StructureError: {
        "same number of exa": lambda: ep.batched(sin)(1.0),
        "`None` in `in_axes`": lambda: ep.batched(sin)({"a": ones(2), "b": ones(3)}),
        "same containers": lambda: ep.batched(sin, in_axes={"a": 0})((ones(2),)),
    },
}

REPEAT = {
    TypeError: {
        "lambda key": lambda: ep.repeat(linear(key()), 2, key=key()),
        "Wrap it": lambda: ep.repeat(lambda: sin, 2, key=key()),
        "A stage is a call": lambda: stack(2, lambda key: None),
        r"jax.random.key\(seed": lambda: ep.repeat(block, 2, key=None),
    },
    KeyError: {"Give an integer from -2 to 1": lambda: stack(2)["a"]},
    ep.StructureError: {
        "first what it got.*or use `chain`": lambda: stack(
            2, lambda key: lambda x: x[:1]
        )(ones(3))
    },
    ValueError: {
        r"write `eqx_pipe.batched\(layer\)`": lambda: stack(
            2, lambda key: jax.vmap(linear(key))
        ),
    },
}

BUILT = {
    ValueError: {
        "Give at least one": lambda: ep.repeat([]),
        "needs at least 1": lambda: ep.ensemble(block, 2, key=key())[2:],
    },
    TypeError: {
        "Give the stages alone, or a function": lambda: ep.repeat([sin], key=key()),
        'or use `merge="stack"`': lambda: ep.ensemble([lambda x: "a"])(ones(2)),
    },
    ep.StructureError: {
        r"`stages\[1\]`.*float32\[3,3\] against float32\[4,3\].*Give each": lambda: (
            ep.repeat([linear(key()), nn.Linear(3, 4, key=key())])
        ),
        "`.eps`: 1e-05 against 0.1.*or use `eqx_pipe.chain`": lambda: ep.repeat(
            [nn.LayerNorm(3), nn.LayerNorm(3, eps=0.1)]
        ),
        "share functions between them": lambda: ep.repeat([lambda x: x, lambda x: -x]),
    },
}


def add(total, x):
    return total + x, total


SCAN = {
    TypeError: {
        r"eqx_pipe.batched\(stage": lambda: ep.scan(jnp.isnan, 0),
        "Give the carry of the first step": lambda: ep.scan(add),
        r"Return `\(carry, y\)`": lambda: ep.scan(lambda c, x: x, 0.0)(ones(3)),
    },
    ep.StructureError: {
        "axis of steps": lambda: ep.scan(add, 0.0)(1.0),
        "`.b` is float32.3.*same length": lambda: ep.scan(add, 0.0)(
            {"a": ones(2), "b": ones(3)}
        ),
        "dtypes of the carry.*`0.0` in place of": lambda: ep.scan(add, 0)(ones(3)),
    },
}

RESIDUAL = {
    ValueError: {"Give at least one": lambda: ep.residual()},
    ep.StructureError: {
        "a projection by `parallel": lambda: ep.residual(lambda x: x[:1])(ones(3))
    },
    TypeError: {"by `eqx_pipe.at`": lambda: ep.residual(lambda x: x)("a")},
}

OUTPUTS = {
    ValueError: {"Did you mean `sine`": lambda: ep.outputs(ep.chain(sine=sin), "sin")}
}
