"""A traced function that also counts the steps of its loops."""

import dataclasses

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._jaxprs import counted, open_jaxpr, trace
from .trace import Traced


def with_steps(traced: Traced) -> Traced:
    """The same function with the outputs `(output, needed, executed)`."""
    inputs = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, weak_type=v.aval.weak_type)
        for v in open_jaxpr(traced.jaxpr)[0].invars
    ]
    number, leaf = jax.ShapeDtypeStruct((), jnp.uint32), jtu.tree_structure(0)
    return dataclasses.replace(
        traced,
        jaxpr=trace(lambda *args: counted(traced.jaxpr, args), *inputs),
        structure=jtu.treedef_tuple((traced.structure, leaf, leaf)),
        outputs=[*traced.outputs, number, number],
        key_kinds=[*traced.key_kinds, None, None],
    )
