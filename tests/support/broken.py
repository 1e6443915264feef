"""Broken stages that several test files share."""

import jax
import jax.numpy as jnp


@jax.custom_batching.custom_vmap
def mixes_lanes(x):
    return x * 2


@mixes_lanes.def_vmap
def _mixes_lanes(size, batched, x):
    return x * 2 - jnp.mean(x, axis=0), True


@jax.tree_util.register_pytree_node_class
class ForgetsItsShift:
    """Flattening leaves a part behind."""

    def __init__(self, scale, shift=0.0):
        self.scale, self.shift = scale, shift

    def tree_flatten(self):
        return (self.scale,), None

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(*children)
