"""The laws of axes."""

import dataclasses
import functools as ft
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._errors import describe_value, type_error, value_error
from ..._keys import check_key as check_one_key
from ..._spaces import MAX_LENGTH, Axis
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .compare import (
    AnyArray,
    Bound,
    Tolerance,
    agree,
    agree_in_struct,
    agree_with_reference,
    as_numpy,
    check_reference,
    stack,
    tolerance_of,
)
from .law import Broken, check_laws, law, laws_of, must_work

_MOST = 16  # positions of a long axis that are looked at
# A fair coin shows one side for all of them once in two billion runs.
_NUM_KEYS = 32


def _positions_of(n: int) -> list[int]:
    """Some of `n` positions, both ends among them."""
    if n <= _MOST:
        return list(range(n))
    inner = [(n - 1) * i // (_MOST - 1) for i in range(_MOST)]
    return sorted({0, 1, n - 2, n - 1, *inner})


@dataclasses.dataclass(frozen=True)
class AxisTrial:
    """An axis, and what it gives at some positions."""

    axis: Axis
    key: Key | None
    tolerance: Tolerance
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def positions(self) -> list[int]:
        return _positions_of(len(self.axis))

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return self.values(self.positions)

    def values(self, positions: list[int]) -> list[PyTree]:
        return [self.value(jnp.int32(i)) for i in positions]

    def value(self, i: jax.Array) -> PyTree:
        return as_arrays(self.axis.value(i, self.key))

    @law("length", "it has a length, and a dim.")
    def length_law(self) -> None:
        with must_work("`len`"):
            n = len(self.axis)
        if not 1 <= n <= MAX_LENGTH:
            raise Broken(f"the length is {n}, and must be at least 1")
        dim = self.axis.dim
        if not (dim is None or (isinstance(dim, str) and dim)):
            raise Broken(f"`dim` is {dim!r}, not a name or None", "dim")

    @law("forms", "its values agree in form.")
    def forms_law(self) -> None:
        for i, value in zip(self.positions, self.plain, strict=True):
            labels = (f"at position {i}", "at position 0")
            agree_in_struct(value, self.plain[0], labels)

    @law("pure", "a value is the same each time.")
    def pure_law(self) -> None:
        again = self.values(self.positions[::-1])[::-1]
        agree(again, self.plain, ("the second time", "the first time"))

    @law("traced", "a value can be traced.")
    def traced_law(self) -> None:
        positions, wanted = jnp.array(self.positions, jnp.int32), stack(self.plain)
        for how, transformed in (
            ("traced", lambda p: jax.lax.map(self.value, p)),
            ("vectorised", jax.vmap(self.value)),
        ):
            with must_work(f"a {how} position"):
                got = jax.jit(transformed)(positions)
            agree(got, wanted, (how, "plain"), self.tolerance)

    @law("keyless", "it can do without a key.")
    def keyless_law(self) -> None:
        if not self.axis.needs_key:
            with must_work("`needs_key` is False, and a value without a key"):
                for i in self.positions[:2]:
                    self.axis.value(jnp.int32(i), None)

    @law("draws", "what it draws depends on the position, and on the key.")
    def draws_law(self) -> None:
        if not self.axis.needs_key or self.key is None or len(self.positions) < 2:
            return
        keys = jr.split(self.key, _NUM_KEYS)
        positions = jnp.array(self.positions, jnp.int32)
        each = jax.vmap(lambda p, k: as_arrays(self.axis.value(p, k)), (0, None))
        drawn = jtu.tree_leaves(jax.jit(jax.vmap(each, (None, 0)))(positions, keys))
        rows = [np.stack([_as_bytes(v[i]) for v in drawn]) for i in range(_NUM_KEYS)]
        # Of few values, as a coin has, nothing can be told.
        of_keys = {row[:, 0].tobytes() for row in rows}
        of_positions = [len({v.tobytes() for v in row.T}) for row in rows]
        if len(of_keys) > _NUM_KEYS // 2 and max(of_positions) == 1:
            raise Broken("all positions draw the same value")
        if len(of_keys) == 1 and min(of_positions) > 2:
            raise Broken(f"{_NUM_KEYS} keys all draw the same values")

    @law("reference", "it gives what the reference gives at each position.")
    def reference_law(self) -> None:
        for i, value in zip(self.positions, self.plain, strict=True):
            if self.reference is not None:
                try:
                    agree_with_reference(value, self.reference(i), self.tolerance)
                except Broken as how:
                    what = f"at position {i}: {how.what}"
                    raise Broken(what, how.leaf) from None

    @law("flatten", "flattening keeps it.")
    def flatten_law(self) -> None:
        leaves, structure = jtu.tree_flatten(self.axis)
        other = dataclasses.replace(self, axis=jtu.tree_unflatten(structure, leaves))
        got = other.values(self.positions)
        agree(got, self.plain, ("after flattening", "before"))


def _as_bytes(array: AnyArray) -> np.ndarray:
    """A number for each element along the first axis: equal if these are."""
    return np.array([hash(v.tobytes()) for v in as_numpy(array)])


def check_axis(
    axis: Axis,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that an axis is a sequence that JAX can compute with.

    It has a length; its values agree in structure, shapes and dtypes; a value is the
    same each time, traced, and vectorised; it can do without a key unless `needs_key`
    says otherwise, and then draws other values at other positions and with other keys;
    flattening keeps it. Of a long axis the values at both ends are
    looked at, and some between.

    **Arguments:**

    - `axis`: an `Axis`.
    - `key`: a PRNG key, for an axis that needs one. (Keyword only.)
    - `reference`: a function from a position, an `int`, to the value there, such as
        `np.linspace(0, 1, 5).__getitem__`: so a wrong end is found. (Keyword only.)
    - `rtol`, `atol`: as in `check_function`, for traced values and the reference.
        (Keyword only.)

    **Raises:** `AssertionError` if a law is broken.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax
        >>> ept.check_axis(ep.Linspace(0, 1, 5), reference=lambda i: i / 4)
        >>> ept.check_axis(ep.Geomspace(1e-3, 1, 7))
        >>> ept.check_axis(ep.Random(jax.random.normal, 4), key=jax.random.key(0))
    """
    __tracebackhide__ = True
    if not isinstance(axis, Axis):
        raise type_error(
            "testing.check_axis",
            f"`axis` is {describe_value(axis)}.",
            "Give an `Axis`: `Linspace(0, 1, 5)`, or an instance of your own.",
        )
    check_one_key("testing.check_axis", key)
    tolerance = tolerance_of("testing.check_axis", rtol, atol)
    check_reference("testing.check_axis", reference)
    trial = AxisTrial(axis, key, tolerance, reference)
    name, laws = type(axis).__name__, laws_of(AxisTrial)
    check_laws("check_axis", "an axis", trial, name, laws[:1])
    if axis.needs_key and key is None:
        raise value_error(
            "testing.check_axis",
            "the axis draws its values, and `key` is None.",
            "Give `key=jax.random.key(0)`.",
        )
    if not axis.is_static:
        check_laws("check_axis", "an axis", trial, name, laws[1:])
