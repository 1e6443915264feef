"""Laws, broken laws, and comparisons of pytrees."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike

from ..._check import check_choice, check_is
from ..._tree import differences, is_key_array, leaves_with_names
from ..._types import PyTree


class Broken(Exception):
    """A law is broken: the difference, and the leaf at which it occurs."""

    def __init__(self, what: str, leaf: str = ""):
        super().__init__(what)
        self.what, self.leaf = what, leaf


class Undecided(Exception):
    """A law cannot be decided, with the reason."""


FIRST_ONLY = "each plain call compiles, so it was judged at the first arguments only"


@contextlib.contextmanager
def must_work(how: str) -> Iterator[None]:
    """Raise `Broken` if the block raises; `how` describes the block."""
    try:
        yield
    except (Broken, Undecided):
        raise
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error


@contextlib.contextmanager
def must_hold(how: str, leaf: str = "") -> Iterator[None]:
    """Put `how` before the difference of a `Broken` that the block raises."""
    try:
        yield
    except Broken as broken:
        where = leaf or broken.leaf
        raise Broken(f"{how}: {broken.what}", where) from None


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    short = line if len(line) < 200 else line[:200] + "..."
    return f"{type(error).__name__}: {short}"


@dataclasses.dataclass(frozen=True)
class Law:
    """A rule in words, and a test that raises `Broken` if it does not hold.

    `test(trial)` may return a note, and raises `Undecided` if it cannot decide.
    """

    name: str
    rule: str
    test: Callable[[Any], str | None]


def law(name: str, rule: str) -> Callable[[Callable[[Any], str | None]], Law]:
    """Decorate a test to make it a law."""
    return ft.partial(Law, name, rule)


def outcome(law: Law, trial: Any, kind: str) -> str | Broken:
    """Return the `Broken` of a law, or the text that it holds or is undecided.

    `kind` names the subject of the law, as in "an axis".
    """
    try:
        with must_work(kind):
            note = law.test(trial)
    except Broken as how:
        return how
    except Undecided as why:
        return f"undecided: {why}"
    return f"holds; {note}" if note else "holds"


def laws_of(kind: type) -> list[Law]:
    """Return the laws of a class of trials, in their order."""
    return [value for value in vars(kind).values() if isinstance(value, Law)]


def check_laws(
    function: str,
    kind: str,
    trial: Any,
    where: str = "",
    laws: Sequence[Law] | None = None,
) -> None:
    """Raise an `AssertionError` for the first law that is broken.

    `where` is the type of the subject. By default all laws of the trial's class are
    checked.
    """
    __tracebackhide__ = True
    for law in laws_of(type(trial)) if laws is None else laws:
        # Raised outside an `except` block: Hypothesis treats errors with different
        # contexts as different errors, and would not shrink one to the other.
        how = outcome(law, trial, kind)
        if isinstance(how, Broken):
            leaf = [f"leaf: `{how.leaf}`"] if how.leaf else []
            subject = [f"where: {where}"] if where else []
            lines = [*subject, *leaf, f"difference: {how.what}"]
            head = f"the law `{law.name}` of {kind} is broken: {law.rule}"
            text = "\n  ".join([f"`eqx_pipe.testing.{function}`: {head}", *lines])
            raise AssertionError(text) from how.__cause__


def check_names(
    function: str, option: str, names: Collection[str], known: Collection[str]
) -> set[str]:
    """Return names of laws as a set; raise if one is unknown."""
    cure = f"Give a tuple of names of laws: `{option}=('derivative',)`."
    check_is(function, option, names, tuple | list | set | frozenset, cure)
    for name in names:
        check_choice(function, option, name, known)
    return set(names)


_RELATIVE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_RELATIVE |= {"float16": 1e-2, "bfloat16": 5e-2}


AnyArray: TypeAlias = jax.Array | np.ndarray | np.generic
"""An array, of JAX or NumPy."""

Bound: TypeAlias = int | float | None
"""A tolerance for differences of numbers; `None` for a default by dtype."""

Labels: TypeAlias = tuple[str, str]
"""Names for the computations of two pytrees, for messages."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The tolerance of two numbers: `atol + rtol * (largest in the array)`.

    `None` stands for a default by dtype, or by `coarsest` if that has fewer digits. It
    is relative to the largest number, not to each, so sums that cancel to about zero
    raise no false alarm.
    """

    rtol: Bound = None
    atol: Bound = None
    coarsest: str = "float64"

    def allowed(self, dtype: DTypeLike, largest: float) -> float:
        """Return the tolerance for an array of a dtype."""
        # The precision of float8_e5m2, which has two mantissa bits.
        rest = 0.25 if jnp.issubdtype(dtype, jnp.inexact) else 0.0
        usual = _RELATIVE.get(str(dtype), rest)
        usual = max(usual, _RELATIVE.get(self.coarsest, 0.0)) if usual else usual
        rtol = usual if self.rtol is None else self.rtol
        atol = usual / 10 if self.atol is None else self.atol
        return atol + rtol * largest


EXACT = Tolerance(0.0, 0.0)
USUAL = Tolerance()


def check_reference(function: str, reference: object) -> None:
    """Raise a `TypeError` unless `reference` is `None` or can be called."""
    if reference is not None:
        cure = "Give a function that makes the same numbers in another way."
        check_is(function, "reference", reference, Callable, cure)


def agree(
    got: PyTree, wanted: PyTree, labels: Labels, tolerance: Tolerance = EXACT
) -> None:
    """Raise `Broken` for the first leaf at which two pytrees differ."""
    agree_in_struct(got, wanted, labels)
    _agree_in_numbers(got, wanted, labels, tolerance)


def agree_with_reference(
    got: PyTree, wanted: PyTree, where: str = "", tolerance: Tolerance = USUAL
) -> None:
    """Raise `Broken` if a reference differs; it may have wider dtypes."""
    labels = (f"found {where}".strip(), "by the reference")
    form, other = jtu.tree_structure(got), jtu.tree_structure(wanted)
    if form != other:
        raise Broken(f"{form} {labels[0]}, {other} {labels[1]}")
    _agree_in_numbers(got, wanted, labels, tolerance)


def _agree_in_numbers(
    got: PyTree, wanted: PyTree, labels: Labels, tolerance: Tolerance
) -> None:
    pairs = zip(leaves_with_names(got), jtu.tree_leaves(wanted), strict=True)
    for (name, a), b in pairs:
        if not eqx.is_array_like(a) or not eqx.is_array_like(b):
            continue
        a, b = (v if is_key_array(v) else np.asarray(v) for v in (a, b))
        what = _gap(a, b, tolerance, labels)
        if what:
            raise Broken(what, name)


def agree_in_struct(got: PyTree, wanted: PyTree, labels: Labels) -> None:
    """Raise `Broken` if structures, shapes or dtypes differ."""
    lines = differences(_structs(got), _structs(wanted))
    if lines:
        leaf = lines[0].partition("`.")[2].partition("`")[0]
        what = f"{'; '.join(lines)} ({labels[0]} against {labels[1]})"
        raise Broken(what, leaf)


def as_numpy(leaf: AnyArray) -> np.ndarray:
    """Return a NumPy array of a dtype that supports subtraction; keys as bits."""
    if is_key_array(leaf):
        return np.asarray(jr.key_data(jnp.asarray(leaf)))
    for kind, wide in ((jnp.floating, float), (jnp.complexfloating, complex)):
        if jnp.issubdtype(leaf.dtype, kind):
            return np.asarray(leaf).astype(wide)
    return np.asarray(leaf)


def _structs(tree: PyTree) -> PyTree:
    """Replace arrays by shapes and dtypes, and drop functions."""

    def struct(leaf: Any) -> Any:
        if eqx.is_array(leaf):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return "a function" if callable(leaf) else leaf

    return jtu.tree_map(struct, tree)


def _gap(a: AnyArray, b: AnyArray, tolerance: Tolerance, labels: Labels) -> str | None:
    """Return the largest difference of two arrays as text; `None` if it is allowed."""
    if a.shape != b.shape:
        return f"shape {list(a.shape)} {labels[0]}, {list(b.shape)} {labels[1]}"
    left, right = as_numpy(a), as_numpy(b)
    apart, allowed = (left != right).astype(float), 0.0
    is_inexact = left.dtype.kind in "fc"
    if is_inexact:
        largest = np.max(np.abs(right[np.isfinite(right)]), initial=0.0)
        allowed = tolerance.allowed(a.dtype, float(largest))
        # Equal infinities agree, although their difference is NaN.
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(same, 0.0, np.abs(left - right))
        # A NaN on one side only is never allowed.
        apart = np.where(np.isnan(apart), np.inf, apart)
    wrong = apart > allowed
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    numbers = f"{left[index]:.6g} {labels[0]}, {right[index]:.6g} {labels[1]}"
    if is_inexact and np.isfinite(apart[index]):
        numbers += f"; {apart[index]:.3g} apart, {allowed:.2g} allowed"
    if not index:
        return numbers
    at = ", ".join(map(str, index))
    return f"{wrong.sum()} of {wrong.size} elements differ, most at [{at}]: {numbers}"


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stack the arrays of pytrees; other leaves come from the first pytree."""

    def join(*leaves: Any) -> Any:
        if eqx.is_array_like(leaves[0]) and not isinstance(leaves[0], str):
            return stacked(leaves)
        return leaves[0]

    return jtu.tree_map(join, *trees)


def stacked(leaves: Sequence[Any]) -> Any:
    """Stack arrays without compiling anything; new-style keys compile a program."""
    if is_key_array(leaves[0]):
        data: Any = np.stack([np.asarray(jr.key_data(v)) for v in leaves])
        return jr.wrap_key_data(data, impl=jr.key_impl(leaves[0]))
    return np.stack([np.asarray(v) for v in leaves])
