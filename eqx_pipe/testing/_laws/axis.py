"""The laws of axes."""

import dataclasses
import functools as ft
import itertools as it
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np

from ..._check import check_is
from ..._errors import value_error
from ..._keys import check_key
from ..._spaces import MAX_LENGTH, Axis
from ..._tree import as_arrays
from ..._types import Key, PyTree
from .law import (
    USUAL,
    Broken,
    agree,
    agree_in_struct,
    agree_with_reference,
    as_numpy,
    check_laws,
    check_reference,
    law,
    must_work,
    stack,
)

_MOST = 16  # positions of a long axis that are checked
# A fair coin gives the same side for all keys once in two billion runs.
_NUM_KEYS = 32


@dataclasses.dataclass(frozen=True)
class AxisTrial:
    """An axis, and its values at some positions."""

    axis: Axis
    key: Key | None
    reference: Callable[[int], PyTree] | None = None

    @ft.cached_property
    def positions(self) -> list[int]:
        """Some positions, including four at both ends."""
        n = len(self.axis)
        inner = [(n - 1) * i // (_MOST - 1) for i in range(_MOST)]
        return sorted({*inner, *range(min(4, n)), *range(max(n - 4, 0), n)})

    @ft.cached_property
    def plain(self) -> list[PyTree]:
        return self.values(self.axis)

    def values(self, axis: Axis) -> list[PyTree]:
        """Return the values at the positions, computed one by one."""
        need = "" if axis.needs_key else " without a key, as `needs_key` is False,"
        with must_work(f"a value{need}"):
            return [self.value(axis, jnp.int32(i)) for i in self.positions]

    def value(self, axis: Axis, i: jax.Array) -> PyTree:
        return as_arrays(axis.value(i, self.key if axis.needs_key else None))

    def traced(self, key: Key | None) -> PyTree:
        """Return the values at the positions, stacked, from one program."""
        trial = dataclasses.replace(self, key=key)
        positions = jnp.array(self.positions, jnp.int32)
        return jax.jit(jax.vmap(ft.partial(trial.value, self.axis)))(positions)

    @law("length", "it has a length, and a dim.")
    def length_law(self) -> None:
        with must_work("`len`"):
            n = len(self.axis)
        if not 1 <= n <= MAX_LENGTH:
            raise Broken(f"the length is {n}, and must be at least 1")
        dim = self.axis.dim
        if not (dim is None or (isinstance(dim, str) and dim)):
            raise Broken(f"`dim` is {dim!r}, not a name or None", "dim")

    @law("forms", "its values agree in structure, shapes and dtypes.")
    def forms_law(self) -> None:
        for i, value in zip(self.positions, self.plain, strict=True):
            labels = (f"at position {i}", "at position 0")
            agree_in_struct(value, self.plain[0], labels)

    @law("pure", "a value is the same each time.")
    def pure_law(self) -> None:
        labels = ("the second time", "the first time")
        agree(self.values(self.axis), self.plain, labels)

    @law("traced", "a value can be traced.")
    def traced_law(self) -> None:
        with must_work("a traced and vectorised position"):
            got = self.traced(self.key)
        agree(got, stack(self.plain), ("traced", "plain"), USUAL)

    @law("draws", "its draws depend on the position and on the key.")
    def draws_law(self) -> None:
        if not self.axis.needs_key or self.key is None or len(self.positions) < 2:
            return
        keys = jr.split(self.key, _NUM_KEYS)
        drawn = map(as_numpy, jtu.tree_leaves(jax.jit(jax.vmap(self.traced))(keys)))
        shape = (_NUM_KEYS, len(self.positions), -1)
        rows = np.concatenate([v.reshape(shape) for v in drawn], axis=-1)
        of_keys = len(np.unique(rows[:, 0], axis=0))
        of_positions = [len(np.unique(row, axis=0)) for row in rows]
        # Discrete draws with few values, such as those of a coin, are not judged.
        if of_keys > _NUM_KEYS // 2:
            for (i, a), (j, b) in it.combinations(enumerate(self.positions), 2):
                if (rows[:, i] == rows[:, j]).all():
                    raise Broken(f"positions {a} and {b} draw the same values")
        if of_keys == 1 and min(of_positions) > 2:
            raise Broken(f"{_NUM_KEYS} keys all draw the same values")

    @law("distinct", "integers at the end of a long axis are as distinct as others.")
    def distinct_law(self) -> None:
        arrays = jtu.tree_leaves(stack(self.plain))
        if len(self.axis) <= 2**24 or any(v.dtype.kind not in "iub" for v in arrays):
            return
        rows = [b"".join(v[i].tobytes() for v in arrays) for i in range(len(arrays[0]))]
        if len({*rows[:4]}) == 4 and len({*rows[-4:]}) < 4:
            what = "the last four positions give equal values; float32 numbers skip"
            raise Broken(
                f"{what} integers above 2**24, so keep the position an integer"
            )

    @law("reference", "it agrees with the reference at each position.")
    def reference_law(self) -> None:
        if self.reference is not None:
            for i, value in zip(self.positions, self.plain, strict=True):
                wanted, where = self.reference(i), f"at position {i}"
                agree_with_reference(value, wanted, where)

    @law("flatten", "flattening and unflattening preserve it.")
    def flatten_law(self) -> None:
        leaves, structure = jtu.tree_flatten(self.axis)
        got = self.values(jtu.tree_unflatten(structure, leaves))
        agree(got, self.plain, ("after flattening", "before"))


def check_axis(
    axis: Axis,
    *,
    key: Key | None = None,
    reference: Callable[[int], PyTree] | None = None,
) -> None:
    """Check that an axis is a sequence that JAX can trace and vectorise.

    The laws: the axis has a length; its values agree in structure, shapes and dtypes; a
    value is the same in every call, traced and vectorised; the axis needs no key unless
    `needs_key` is True, and then different positions and keys give different values;
    flattening and unflattening preserves it. For a long axis, the values at both ends
    and at some positions between are checked.

    **Arguments:**

    - `axis`: an `Axis`.
    - `key`: a PRNG key, for an axis that needs one. (Keyword only.)
    - `reference`: a function from a position, an `int`, to the value there, such as
        `np.linspace(0, 1, 5).__getitem__`, which detects a wrong end. (Keyword only.)

    **Raises:** `AssertionError` if a law is broken; `TypeError` if `axis` is not an
    `Axis`; `ValueError` if the axis needs a key and `key` is None.

    !!! example

        >>> import eqx_pipe as ep, eqx_pipe.testing as ept, jax
        >>> ept.check_axis(ep.Linspace(0, 1, 5), reference=lambda i: i / 4)
        >>> ept.check_axis(ep.Geomspace(1e-3, 1, 7))
        >>> ept.check_axis(ep.Random(jax.random.normal, 4), key=jax.random.key(0))
    """
    __tracebackhide__ = True
    cure = "Give an `Axis`: `Linspace(0, 1, 5)`, or an instance of your own."
    check_is("testing.check_axis", "axis", axis, Axis, cure)
    check_key("testing.check_axis", key)
    check_reference("testing.check_axis", reference)
    if axis.needs_key and key is None:
        raise value_error(
            "testing.check_axis",
            "the axis draws its values, and `key` is None.",
            "Give `key=jax.random.key(0)`.",
        )
    trial = AxisTrial(axis, key, reference)
    # The values of a static axis may have any type.
    laws = [AxisTrial.length_law] if axis.is_static else None
    check_laws("check_axis", "an axis", trial, type(axis).__name__, laws)
