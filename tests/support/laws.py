"""Laws of spaces, sweeps and sharded functions, which test this package."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from support.helpers import assert_agree
from support.sweeps import close, same
from support.ways import by_hand

import eqx_pipe as ep
from eqx_pipe.testing import check_axis


def check_space(space):
    """Check that a space is a pure function from index to point."""
    space = space if isinstance(space, ep.Space) else ep.Space(space)
    axes = space.axes()
    for name, axis in axes.items():
        check_axis(axis, key=space.axis_key(name))
    assert space.size == math.prod(space.dims.values())
    last = space.size - 1
    positions = sorted({0, min(1, last), last // 2, last})
    points = [space.point(i) for i in positions]
    same([space.point(i) for i in positions], points)
    tail = space[last // 2 :]
    same(tail.point(tail.size - 1), points[-1])
    if not any(axis.is_static for axis in axes.values()):
        check_traced(space, positions, points)


def check_traced(space, positions, points):
    """Check the points at a traced index, which is an array and so has 32 bits."""
    near = [i for i in positions if i < 2**32]
    dtype = jnp.int32 if space.size < 2**31 else jnp.uint32
    traced = jax.jit(jax.vmap(lambda i: arrays_in(space.point(i))))
    stack = jtu.tree_map(
        lambda *leaves: jnp.stack(leaves), *map(arrays_in, points[: len(near)])
    )
    close(traced(jnp.array(near, dtype)), stack)


def arrays_in(point):
    return jtu.tree_leaves(eqx.filter(point, eqx.is_array))


def check_sweep(fn, space, *, key=None):
    """Check that sweeping a function gives what a loop over the points gives."""
    space = space if isinstance(space, ep.Space) else ep.Space(space)
    wanted, n = by_hand(fn, space, key), space.size
    alone = Mesh(np.array(jax.local_devices()[:1]), ("points",))
    for size, mesh in [*((size, alone) for size in {1, min(3, n), n}), (n, None)]:
        result = ep.sweep(fn, space, key=key, batch_size=size, mesh=mesh)
        close(result.values, wanted)


def check_sharded(fn, *args, mesh, reference=None, key=None):
    """Check that arguments spread over the devices of a mesh give the same."""
    keyword = {} if key is None else {"key": key}
    wanted = (reference or fn)(*args, **keyword)
    assert_agree(eqx.filter_jit(fn)(*divided(args, mesh), **keyword), wanted)


def divided(tree, mesh):
    """Spread each array along its first axis that divides, or copy it."""

    def place(leaf):
        if not eqx.is_array(leaf):
            return leaf
        fits = [bool(n) and n % mesh.size == 0 for n in leaf.shape]
        axis = fits.index(True) if any(fits) else leaf.ndim
        spec = P(*[None] * axis, *[mesh.axis_names] * any(fits))
        return jax.device_put(leaf, NamedSharding(mesh, spec))

    return jtu.tree_map(place, tree)
