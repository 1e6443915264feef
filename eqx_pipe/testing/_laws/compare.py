"""What differs between two pytrees that should agree, and how much may."""

import dataclasses
import math
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike

from ..._errors import describe_value, message
from ..._tree import differences, is_key_array, leaves_with_names
from ..._types import PyTree

_RELATIVE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_RELATIVE |= {"float16": 1e-2, "bfloat16": 5e-2}


AnyArray: TypeAlias = jax.Array | np.ndarray | np.generic
"""An array, of JAX or NumPy."""

Bound: TypeAlias = int | float | None
"""How far apart numbers may be; `None` for what suits the dtype."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """How far two numbers may be apart: `atol + rtol * (largest in the array)`.

    `None` stands for what suits the dtype. Relative to the largest number, and not to
    each, so that sums that cancel to about zero are no false alarm.
    """

    rtol: Bound = None
    atol: Bound = None

    def allowed(self, dtype: DTypeLike, largest: float) -> float:
        """The bound for an array of a dtype."""
        usual = _RELATIVE.get(str(dtype), 0.25 if _is_inexact(dtype) else 0.0)
        rtol = usual if self.rtol is None else self.rtol
        atol = usual / 10 if self.atol is None else self.atol
        return atol + rtol * largest


def tolerance_of(function: str, rtol: Bound, atol: Bound) -> Tolerance:
    """`rtol` and `atol`, after a check."""
    for name, value in (("rtol", rtol), ("atol", atol)):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is None or (number and 0 <= value < math.inf):
            continue
        raise (ValueError if number else TypeError)(
            message(
                function,
                f"`{name}` is {describe_value(value)}.",
                "Give a number of at least 0, or None for what suits the dtype.",
            )
        )
    return Tolerance(rtol, atol)


@dataclasses.dataclass(frozen=True)
class Finding:
    """How a law is broken: at which leaf, in which way, in words.

    `kind` distinguishes ways of breaking one law, so that a smaller input is taken only
    if it breaks the law in the same way.
    """

    kind: str
    leaf: str
    what: str


def compare(
    got: PyTree, wanted: PyTree, tolerance: Tolerance, labels: tuple[str, str]
) -> Finding | None:
    """The first leaf at which two pytrees differ; `None` if they agree.

    `labels` say how each was computed, for the message.
    """
    found = same_forms(got, wanted, labels)
    if found:
        return found
    pairs = zip(leaves_with_names(got), jtu.tree_leaves(wanted), strict=True)
    for (name, a), b in pairs:
        what = _gap(a, b, tolerance, labels) if _is_array(a) else None
        if what:
            return Finding("value", name, what)
    return None


def same_forms(got: PyTree, wanted: PyTree, labels: tuple[str, str]) -> Finding | None:
    """The same of structures, shapes and dtypes alone."""
    lines = differences(_forms(got), _forms(wanted))
    if not lines:
        return None
    leaf = lines[0].partition("`.")[2].partition("`")[0]
    what = f"{'; '.join(lines)} ({labels[0]} against {labels[1]})"
    return Finding("form", leaf, what)


def same_bits(got: PyTree, wanted: PyTree, labels: tuple[str, str]) -> Finding | None:
    """The same, with no tolerance at all."""
    return compare(got, wanted, Tolerance(0.0, 0.0), labels)


def raised(error: BaseException, how: str) -> Finding:
    """The finding that something which should work raises."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[0] if len(lines[0]) < 200 else lines[0][:200] + "..."
    return Finding("raises", "", f"{how} raises {type(error).__name__}: {text}")


def as_numpy(leaf: AnyArray) -> np.ndarray:
    """Numbers in NumPy, wide enough to be subtracted; keys as their bits."""
    if is_key_array(leaf):
        return np.asarray(jr.key_data(jnp.asarray(leaf)))
    array = np.asarray(leaf)
    if not _is_inexact(leaf.dtype):
        return array
    complex_ = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    return array.astype(np.complex128 if complex_ else np.float64)


def _forms(tree: PyTree) -> PyTree:
    """Shapes and dtypes in the place of arrays; static functions left out."""

    def form(leaf: Any) -> Any:
        if _is_array(leaf):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return "a function" if callable(leaf) else leaf

    return jtu.tree_map(form, tree)


def _gap(
    a: AnyArray, b: AnyArray, tolerance: Tolerance, labels: tuple[str, str]
) -> str | None:
    left, right = as_numpy(a), as_numpy(b)
    if left.dtype.kind not in "fc":
        apart = (left != right).astype(float)
        allowed = 0.0
    else:
        finite = np.abs(right[np.isfinite(right)])
        allowed = tolerance.allowed(
            a.dtype, float(finite.max()) if finite.size else 0.0
        )
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(same, 0.0, np.abs(left - right))
        apart = np.where(np.isnan(apart), np.inf, apart)
    wrong = apart > allowed
    if not wrong.any():
        return None
    place = np.unravel_index(int(np.argmax(apart)), apart.shape)
    at = f"most at [{', '.join(map(str, place))}]: " if apart.ndim else ""
    numbers = f"{at}{left[place]:.6g} {labels[0]}, {right[place]:.6g} {labels[1]}"
    if left.dtype.kind in "fc" and np.isfinite(apart[place]):
        numbers += f"; {apart[place]:.3g} apart, {allowed:.2g} allowed"
    count = (
        f"{int(wrong.sum())} of {wrong.size} elements differ, " if apart.ndim else ""
    )
    return count + numbers


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic)


def _is_inexact(dtype: DTypeLike) -> bool:
    return jnp.issubdtype(dtype, jnp.inexact)
