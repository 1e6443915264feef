"""The laws of spaces."""

import dataclasses
import functools as ft
import math

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._check import check_key as check_one_key
from ..._spaces.space import Space, as_space
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .axis import check_axis, positions_of
from .compare import Bound, Finding, Tolerance, compare, raised, same_bits, tolerance_of
from .law import Law, check_laws
from .vmap import stack


@dataclasses.dataclass(frozen=True)
class _Trial:
    """A space, and some of its points."""

    space: Space
    tolerance: Tolerance

    @ft.cached_property
    def positions(self) -> list[int]:
        return positions_of(self.space.size)

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return self.points()

    def points(self) -> list[PyTree]:
        return [as_arrays(self.space.point(i)) for i in self.positions]

    def find_size(self) -> Finding | None:
        dims, size = self.space.dims, self.space.size
        product = math.prod(dims.values())
        if product == size:
            return None
        what = f"dims {dims} make {product} points, and `.size` is {size}"
        return Finding("size", "", what)

    def find_change(self) -> Finding | None:
        labels = ("the second time", "the first time")
        return same_bits(self.points(), self.plain, labels)

    def find_in_slice(self) -> Finding | None:
        tail = self.space[self.positions[-1] // 2 :]
        end = as_arrays(tail.point(tail.size - 1))
        return same_bits(end, self.plain[-1], ("in a slice", "in the space"))

    def find_traced(self) -> Finding | None:
        if self.space.geometry.static_dims:
            return None
        pairs = zip(self.positions, self.plain, strict=True)
        # A traced index is an array, and so has 32 bits.
        near = [(i, point) for i, point in pairs if i < 2**32]
        dtype = jnp.int32 if self.space.size < 2**31 else jnp.uint32
        traced = jnp.array([i for i, _ in near], dtype)
        try:
            got = jax.jit(jax.vmap(lambda i: _arrays_in(self.space.point(i))))(traced)
        except Exception as error:
            return raised(error, "a traced index")
        wanted = stack([_arrays_in(point) for _, point in near])
        return compare(got, wanted, self.tolerance, ("traced", "plain"))


def _arrays_in(tree: PyTree) -> list[jax.Array]:
    return [leaf for leaf in jtu.tree_leaves(as_arrays(tree)) if hasattr(leaf, "dtype")]


_LAWS = (
    Law("size", "its size is the product of its dims.", _Trial.find_size),
    Law("pure", "a point is the same each time.", _Trial.find_change),
    Law("slice", "a slice holds the points.", _Trial.find_in_slice),
    Law("traced", "a point can be traced.", _Trial.find_traced),
)


def check_space(
    space: PyTree, *, key: Key | None = None, rtol: Bound = None, atol: Bound = None
) -> None:
    """Checks that a space is a pure function from index to point.

    The size is the product of the dims; a point is the same each time, traced, and in a
    slice; it holds for each axis the value at the point's position, the first dim
    varying slowest. All axes keep the laws of `check_axis`.

    **Arguments:**

    - `space`: a `Space`, or a bare pytree with axes in it.
    - `key`: for a bare pytree with axes that draw. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`, for traced points. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept
        >>> ept.check_space({"a": ep.Linspace(0, 1, 3), "b": ep.Values([1, 2])})
    """
    __tracebackhide__ = True
    function = "testing.check_space"
    tolerance = tolerance_of(function, rtol, atol)
    check_one_key(function, key)
    if key is not None and not isinstance(space, Space):
        space = Space(space, key=key)
    space = as_space(function, space)
    for name, axis in space.axes().items():
        check_axis(axis, key=space.axis_key(name), rtol=rtol, atol=atol)
    check_laws("check_space", "a space", _LAWS, _Trial(space, tolerance))
