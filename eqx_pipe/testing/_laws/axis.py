"""The laws of axes and spaces."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._check import check_key as check_one_key
from ..._errors import describe_value, message
from ..._spaces.axis import MAX_LENGTH, Axis
from ..._spaces.space import Space, as_space
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .compare import Finding, Tolerance, compare, raised, same_bits, tolerance_of
from .report import broken
from .vmap import stack

_MOST = 16  # positions of a long axis that are looked at


def check_axis(
    axis: Any, *, key: Any = None, rtol: Any = None, atol: Any = None
) -> None:
    """Checks that an axis is a sequence that JAX can compute with.

    It has a length; its values agree in structure, shapes and dtypes; a value is the
    same each time, traced, and vectorised; it can do without a key unless `needs_key`
    says otherwise; flattening keeps it. Of a long axis the values at both ends are
    looked at, and some between.

    **Arguments:**

    - `axis`: an `Axis`.
    - `key`: a PRNG key, for an axis that needs one. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`, for traced values. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax
        >>> ept.check_axis(ep.Geomspace(1e-3, 1, 7))
        >>> ept.check_axis(ep.Random(jax.random.normal, 4), key=jax.random.key(0))
    """
    __tracebackhide__ = True
    if not isinstance(axis, Axis):
        raise TypeError(
            message(
                "testing.check_axis",
                f"`axis` is {describe_value(axis)}.",
                "Give an `Axis`: `Linspace(0, 1, 5)`, or an instance of your own.",
            )
        )
    check_one_key("testing.check_axis", key)
    tolerance = tolerance_of("testing.check_axis", rtol, atol)
    _fail(axis, "it has a length, and a dim.", _length(axis))
    if axis.needs_key and key is None:
        raise ValueError(
            message(
                "testing.check_axis",
                "the axis draws its values, and `key` is None.",
                "Give `key=jax.random.key(0)`.",
            )
        )
    if axis.is_static:
        return
    places = _places(len(axis))
    plain = [_value(axis, i, key) for i in places]
    _fail(axis, "its values agree in form.", _forms(plain, places))
    again = [_value(axis, i, key) for i in reversed(places)][::-1]
    ways = ("the second time", "the first time")
    _fail(axis, "a value is the same each time.", same_bits(again, plain, ways))
    _fail(axis, "a value can be traced.", _traced(axis, places, plain, key, tolerance))
    if not axis.needs_key:
        _fail(axis, "it can do without a key.", _keyless(axis, places))
    leaves, structure = jtu.tree_flatten(axis)
    other = jtu.tree_unflatten(structure, leaves)
    ways = ("after flattening", "before")
    flat = [_value(other, i, key) for i in places]
    _fail(axis, "flattening keeps it.", same_bits(flat, plain, ways))


def _fail(axis: Axis, rule: str, finding: Finding | None) -> None:
    __tracebackhide__ = True
    if finding is not None:
        raise broken("check_axis", f"of an axis: {rule}", type(axis).__name__, finding)


def _length(axis: Axis) -> Finding | None:
    try:
        n = len(axis)
    except Exception as error:
        return raised(error, "`len`")
    if not 1 <= n <= MAX_LENGTH:
        return Finding("length", "", f"the length is {n}, and must be at least 1")
    if not (axis.dim is None or (isinstance(axis.dim, str) and axis.dim)):
        return Finding("dim", "dim", f"`dim` is {axis.dim!r}, not a name or None")
    return None


def _places(n: int) -> list[int]:
    if n <= _MOST:
        return list(range(n))
    inner = [(n - 1) * i // (_MOST - 1) for i in range(_MOST)]
    return sorted({0, 1, n - 2, n - 1, *inner})


def _value(axis: Axis, i: int, key: Key | None) -> PyTree:
    return as_arrays(axis.value(jnp.int32(i), key))


def _forms(values: list[PyTree], places: list[int]) -> Finding | None:
    def forms(tree: PyTree) -> PyTree:
        return jtu.tree_map(lambda v: jnp.zeros(v.shape, v.dtype), _unkeyed(tree))

    for i, value in zip(places, values, strict=True):
        ways = (f"at position {i}", "at position 0")
        found = same_bits(forms(value), forms(values[0]), ways)
        if found:
            return found
    return None


def _unkeyed(tree: PyTree) -> PyTree:
    def one(leaf: Any) -> Any:
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jtu.tree_map(one, tree)


def _traced(
    axis: Axis, places: list[int], plain: list[PyTree], key: Any, tolerance: Tolerance
) -> Finding | None:
    positions, wanted = jnp.array(places, jnp.int32), stack(plain)

    def value(i: Any) -> PyTree:
        return as_arrays(axis.value(i, key))

    for transform, how in (
        (lambda: jax.jit(lambda p: jax.lax.map(value, p))(positions), "traced"),
        (lambda: jax.jit(jax.vmap(value))(positions), "vectorised"),
    ):
        try:
            got = transform()
        except Exception as error:
            return raised(error, f"a {how} position")
        found = compare(got, wanted, tolerance, (how, "plain"))
        if found:
            return found
    return None


def _keyless(axis: Axis, places: list[int]) -> Finding | None:
    try:
        for i in places[:2]:
            axis.value(jnp.int32(i), None)
    except Exception as error:
        return raised(error, "`needs_key` is False, and a value without a key")
    return None


def check_space(
    space: Any, *, key: Any = None, rtol: Any = None, atol: Any = None
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
    tolerance = tolerance_of("testing.check_space", rtol, atol)
    check_one_key("testing.check_space", key)
    if key is not None and not isinstance(space, Space):
        space = Space(space, key=key)
    space = as_space("testing.check_space", space)
    for name, axis in space.axes().items():
        check_axis(axis, key=space.axis_key(name), rtol=rtol, atol=atol)

    def fail(rule: str, finding: Finding | None) -> None:
        __tracebackhide__ = True
        if finding is not None:
            raise broken("check_space", f"of a space: {rule}", "", finding)

    product = math.prod(space.dims.values())
    if product != space.size:
        what = f"dims {space.dims} make {product} points, and `.size` is {space.size}"
        fail("its size is the product of its dims.", Finding("size", "", what))
    places = _places(space.size)
    plain = [as_arrays(space.point(i)) for i in places]
    ways = ("the second time", "the first time")
    again = [as_arrays(space.point(i)) for i in places]
    fail("a point is the same each time.", same_bits(again, plain, ways))
    tail = space[places[-1] // 2 :]
    ways = ("in a slice", "in the space")
    end = as_arrays(tail.point(tail.size - 1))
    fail("a slice holds the points.", same_bits(end, plain[-1], ways))
    if space.geometry.static_dims:
        return
    # A traced index is an array, and so has 32 bits.
    near = [(i, point) for i, point in zip(places, plain, strict=True) if i < 2**32]
    dtype = jnp.int32 if space.size < 2**31 else jnp.uint32
    traced = jnp.array([i for i, _ in near], dtype)
    got: PyTree = None
    try:
        got = jax.jit(jax.vmap(lambda i: _arrays_only(space.point(i))))(traced)
    except Exception as error:
        fail("a point can be traced.", raised(error, "a traced index"))
    wanted = stack([_arrays_only(point) for _, point in near])
    ways = ("traced", "plain")
    fail("a point can be traced.", compare(got, wanted, tolerance, ways))


def _arrays_only(tree: PyTree) -> PyTree:
    return [leaf for leaf in jtu.tree_leaves(as_arrays(tree)) if hasattr(leaf, "dtype")]
