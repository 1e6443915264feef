"""Running a device's part of a `shard_map` as if there were no mesh.

Inside `shard_map` the type of every array names the mesh. Libraries that note the types
of a function when they trace it, and compare later, then see another type: lineax calls
a vector of the right shape one that "does not match out_structure", and Equinox's
`filter_closure_convert` refuses its own arguments. Nothing in a sweep looks beyond its
device, so the mesh is taken out of the types, and functions run as under `vmap` alone.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.tree_util as jtu
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import AbstractMesh

from ..._jaxprs.table import TABLE, Entry

# Its meaning is the identity. There is no public function that gives an array inside a
# `shard_map` the type that it has outside (`reshard` is for axes that are not manual).
_leave_p = Primitive("eqx_pipe_leave_mesh")
TABLE[_leave_p.name] = Entry("operation")
_leave_p.def_impl(lambda x: x)
_leave_p.def_abstract_eval(
    lambda x: ShapedArray(x.shape, x.dtype, weak_type=x.weak_type)
)
mlir.register_lowering(_leave_p, lambda _, x: [x])
ad.deflinear(_leave_p, lambda cotangent: [cotangent])
batching.defvectorized(_leave_p)


def without_mesh(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of arrays, whose types inside of it do not name the mesh."""

    def run(*args: Any) -> Any:
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            return function(*jtu.tree_map(_leave_p.bind, args))

    return run
