"""Laws of spaces, sweeps and sharded functions, which test this package."""

import dataclasses
import functools as ft
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import eqx_pipe as ep
from eqx_pipe._tree import as_arrays
from eqx_pipe.testing import check_axis
from eqx_pipe.testing._laws.axis import positions_of
from eqx_pipe.testing._laws.compare import Tolerance, agree, stack
from eqx_pipe.testing._laws.law import Broken, check_laws, law, must_work


@dataclasses.dataclass(frozen=True)
class SpaceTrial:
    """A space, and some of its points."""

    space: ep.Space
    tolerance: Tolerance

    @ft.cached_property
    def positions(self) -> list[int]:
        return positions_of(self.space.size)

    @ft.cached_property
    def plain(self) -> list[Any]:
        return self.points()

    def points(self) -> list[Any]:
        return [as_arrays(self.space.point(i)) for i in self.positions]

    @law("size", "its size is the product of its dims.")
    def size_law(self) -> None:
        dims, size = self.space.dims, self.space.size
        product = math.prod(dims.values())
        if product != size:
            what = f"dims {dims} make {product} points, and `.size` is {size}"
            raise Broken(what)

    @law("pure", "a point is the same each time.")
    def pure_law(self) -> None:
        agree(self.points(), self.plain, ("the second time", "the first time"))

    @law("slice", "a slice holds the points.")
    def slice_law(self) -> None:
        tail = self.space[self.positions[-1] // 2 :]
        end = as_arrays(tail.point(tail.size - 1))
        agree(end, self.plain[-1], ("in a slice", "in the space"))

    @law("traced", "a point can be traced.")
    def traced_law(self) -> None:
        if self.space.geometry.static_dims:
            return
        # A traced index is an array, and so has 32 bits.
        near = [i for i in self.positions if i < 2**32]
        dtype = jnp.int32 if self.space.size < 2**31 else jnp.uint32
        with must_work("a traced index"):
            points = jax.jit(jax.vmap(lambda i: _arrays_in(self.space.point(i))))
            got = points(jnp.array(near, dtype))
        wanted = stack([_arrays_in(point) for point in self.plain[: len(near)]])
        agree(got, wanted, ("traced", "plain"), self.tolerance)


def _arrays_in(tree: Any) -> list[Any]:
    return jtu.tree_leaves(eqx.filter(as_arrays(tree), eqx.is_array))


def check_space(space):
    """Check that a space is a pure function from index to point."""
    space = space if isinstance(space, ep.Space) else ep.Space(space)
    for name, axis in space.axes().items():
        check_axis(axis, key=space.axis_key(name))
    check_laws("check_space", "a space", SpaceTrial(space, Tolerance()))


@dataclasses.dataclass(frozen=True)
class SweepTrial:
    """A function with a space, and the plain loop over its points."""

    fn: Callable[..., Any]
    space: ep.Space
    key: Any
    tolerance: Tolerance

    def at(self, i: int) -> Any:
        point = self.space.point(i)
        key = self.space.point_key(i, key=self.key)
        return as_arrays(self.fn(point) if key is None else self.fn(point, key))

    @ft.cached_property
    def plain(self) -> list[Any]:
        return [self.at(i) for i in range(self.space.size)]

    @law("pure", "`fn` depends on the point and the key alone.")
    def pure_law(self) -> None:
        agree(self.at(0), self.plain[0], ("the second time", "the first time"))

    @law("values", "it gives `fn` at one point after the other, however it runs.")
    def values_law(self) -> None:
        wanted, n = stack(self.plain), self.space.size
        alone = Mesh(np.array(jax.local_devices()[:1]), ("points",))
        sizes = sorted({1, min(3, n), n})
        for size, mesh in [*((size, alone) for size in sizes), (n, None)]:
            devices = "all devices" if mesh is None else "one device"
            how = f"swept in batches of {size} on {devices}"
            options = {"key": self.key, "batch_size": size, "mesh": mesh}
            with must_work(f"`fn` {how}"):
                result = ep.sweep(self.fn, self.space, **options, progress=False)
            got = as_arrays(result.values)
            agree(got, wanted, (how, "in the loop"), self.tolerance)


def check_sweep(fn, space, *, key=None):
    """Check that sweeping a function gives what a loop over the points gives."""
    space = space if isinstance(space, ep.Space) else ep.Space(space)
    check_laws("check_sweep", "a sweep", SweepTrial(fn, space, key, Tolerance()))


def check_sharded(fn, *args, mesh, reference=None, key=None):
    """Check that arguments spread over the devices of a mesh give the same."""
    keyword = {} if key is None else {"key": key}
    wanted = as_arrays((fn if reference is None else reference)(*args, **keyword))
    got = as_arrays(eqx.filter_jit(fn)(*divided(args, mesh), **keyword))
    agree(got, wanted, ("sharded", "on one device"), Tolerance())


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
