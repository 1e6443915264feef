"""The models of docs/composing.md in plain Equinox, as one writes them without us.

Each draws its parameters from the same keys as the model of its name on the page, so
that both compute the same. `python -m benchmarks compose_models` counts the lines.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from equinox import nn


class TransformerBlock(eqx.Module):
    norm: nn.LayerNorm
    attend: nn.MultiheadAttention
    mlp_norm: nn.LayerNorm
    mlp: nn.MLP

    def __init__(self, key):
        attend, mlp = jr.split(key)
        self.norm = nn.LayerNorm(8)
        self.attend = nn.MultiheadAttention(2, 8, key=attend)
        self.mlp_norm = nn.LayerNorm(8)
        self.mlp = nn.MLP(8, 8, 16, 1, key=mlp)

    def __call__(self, inputs):
        x, mask = inputs["x"], inputs["mask"]
        h = jax.vmap(self.norm)(x)
        x = x + self.attend(h, h, h, mask)
        return x + jax.vmap(lambda v: self.mlp(self.mlp_norm(v)))(x)


def noise(*shape):
    return jr.normal(jr.key(3), shape)


# By the name of the function on the page: the plain one, and an input.
MODELS = {
    "transformer_block": (
        TransformerBlock,
        lambda: {"x": noise(5, 8), "mask": jnp.tri(5, dtype=bool)},
    ),
}
