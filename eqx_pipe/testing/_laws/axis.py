"""The laws of axes."""

import dataclasses
import functools as ft

import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._check import check_key as check_one_key
from ..._errors import describe_value, type_error, value_error
from ..._spaces.axis import MAX_LENGTH, Axis
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .compare import (
    Bound,
    Finding,
    Tolerance,
    compare,
    raised,
    same_bits,
    same_forms,
    tolerance_of,
)
from .law import Law, check_laws
from .vmap import stack

_MOST = 16  # positions of a long axis that are looked at


def positions_of(n: int) -> list[int]:
    """Some of `n` positions, both ends among them."""
    if n <= _MOST:
        return list(range(n))
    inner = [(n - 1) * i // (_MOST - 1) for i in range(_MOST)]
    return sorted({0, 1, n - 2, n - 1, *inner})


@dataclasses.dataclass(frozen=True)
class _Trial:
    """An axis, and what it gives at some positions."""

    axis: Axis
    key: Key | None
    tolerance: Tolerance

    @ft.cached_property
    def positions(self) -> list[int]:
        return positions_of(len(self.axis))

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return self.values(self.positions)

    def values(self, positions: list[int]) -> list[PyTree]:
        return [as_arrays(self.axis.value(jnp.int32(i), self.key)) for i in positions]

    def find_length(self) -> Finding | None:
        try:
            n = len(self.axis)
        except Exception as error:
            return raised(error, "`len`")
        if not 1 <= n <= MAX_LENGTH:
            return Finding("length", "", f"the length is {n}, and must be at least 1")
        dim = self.axis.dim
        if not (dim is None or (isinstance(dim, str) and dim)):
            return Finding("dim", "dim", f"`dim` is {dim!r}, not a name or None")
        return None

    def find_forms(self) -> Finding | None:
        for i, value in zip(self.positions, self.plain, strict=True):
            labels = (f"at position {i}", "at position 0")
            found = same_forms(value, self.plain[0], labels)
            if found:
                return found
        return None

    def find_change(self) -> Finding | None:
        again = self.values(self.positions[::-1])[::-1]
        return same_bits(again, self.plain, ("the second time", "the first time"))

    def find_traced(self) -> Finding | None:
        positions, wanted = jnp.array(self.positions, jnp.int32), stack(self.plain)

        def value(i: jax.Array) -> PyTree:
            return as_arrays(self.axis.value(i, self.key))

        for transform, how in (
            (lambda: jax.jit(lambda p: jax.lax.map(value, p))(positions), "traced"),
            (lambda: jax.jit(jax.vmap(value))(positions), "vectorised"),
        ):
            try:
                got = transform()
            except Exception as error:
                return raised(error, f"a {how} position")
            found = compare(got, wanted, self.tolerance, (how, "plain"))
            if found:
                return found
        return None

    def find_need_of_a_key(self) -> Finding | None:
        if self.axis.needs_key:
            return None
        try:
            for i in self.positions[:2]:
                self.axis.value(jnp.int32(i), None)
        except Exception as error:
            return raised(error, "`needs_key` is False, and a value without a key")
        return None

    def find_flattened(self) -> Finding | None:
        leaves, structure = jtu.tree_flatten(self.axis)
        other = dataclasses.replace(self, axis=jtu.tree_unflatten(structure, leaves))
        got = other.values(self.positions)
        return same_bits(got, self.plain, ("after flattening", "before"))


_LENGTH = Law("length", "it has a length, and a dim.", _Trial.find_length)
_LAWS = (
    Law("forms", "its values agree in form.", _Trial.find_forms),
    Law("pure", "a value is the same each time.", _Trial.find_change),
    Law("traced", "a value can be traced.", _Trial.find_traced),
    Law("keyless", "it can do without a key.", _Trial.find_need_of_a_key),
    Law("flatten", "flattening keeps it.", _Trial.find_flattened),
)


def check_axis(
    axis: Axis, *, key: Key | None = None, rtol: Bound = None, atol: Bound = None
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
        raise type_error(
            "testing.check_axis",
            f"`axis` is {describe_value(axis)}.",
            "Give an `Axis`: `Linspace(0, 1, 5)`, or an instance of your own.",
        )
    check_one_key("testing.check_axis", key)
    trial = _Trial(axis, key, tolerance_of("testing.check_axis", rtol, atol))
    name = type(axis).__name__
    check_laws("check_axis", "an axis", (_LENGTH,), trial, name)
    if axis.needs_key and key is None:
        raise value_error(
            "testing.check_axis",
            "the axis draws its values, and `key` is None.",
            "Give `key=jax.random.key(0)`.",
        )
    if not axis.is_static:
        check_laws("check_axis", "an axis", _LAWS, trial, name)
