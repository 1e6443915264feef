"""Checks of arguments; their errors name the function and the argument."""

import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from ._tree import differences, is_sparse, leaf_text, leaves_with_names
from ._types import PyTree

_STAGE = (
    "A stage is a callable `stage(x, *, key=None)`: an `equinox.nn` layer, another "
    "pipeline, or a plain function."
)


def check_callable(
    function: str, argument: str, value: object, cure: str | None = None
) -> None:
    """Raise a `TypeError` unless `value` can be called.

    `cure` is the fix if the argument is a function rather than a stage.
    """
    kind = type(value).__name__
    noun, is_stage = "a function" if cure else "a stage", cure is None
    if inspect.isclass(value):
        wrong = f"is the class `{value.__name__}`, not {noun}."
        cure = f"Make an instance of it first: `{value.__name__}(...)`."
    elif is_stage and isinstance(value, list | tuple | Mapping):
        by_name = "(**stages)" if function == "chain" else "(*stages.values())"
        unpack = by_name if isinstance(value, Mapping) else "(*stages)"
        wrong = f"is a {kind} of {len(value)} things, not a stage."
        cure = f"If these are the stages, unpack them: `{function}{unpack}`."
    elif not callable(value):
        wrong = f"is {describe_value(value)}, which cannot be called."
        cure = cure or _STAGE
    else:
        return
    raise type_error(function, f"`{argument}` {wrong}", cure)


def check_distinct(function: str, kind: str, paths: Sequence[str]) -> None:
    """Raise a `ValueError` if two axes, outputs or reducers have the same path."""
    if len(set(paths)) < len(paths):
        twice = min(path for path in paths if paths.count(path) > 1)
        wrong = f"two {kind} have the path `{twice}`."
        cure = "Rename one of the dict keys (a dot in a key looks like nesting)."
        raise value_error(function, wrong, cure)


def check_name(function: str, argument: str, name: object) -> None:
    """Raise a `ValueError` unless `name` is a non-empty string without a dot."""
    if not isinstance(name, str) or not name or "." in name:
        wrong = f"`{argument}` has the name {describe_value(name)}."
        cure = "A name is a non-empty string without a dot (dots join the names of a "
        cure += "path). Rename it."
        raise value_error(function, wrong, cure)


def check_is(function: str, argument: str, value: object, kind: Any, cure: str) -> None:
    """Raise a `TypeError` unless `value` is an instance of `kind`, a class or ABC."""
    if not isinstance(value, kind):
        raise type_error(function, f"`{argument}` is {describe_value(value)}.", cure)


def check_int(function: str, argument: str, value: Any, minimum: int) -> None:
    """Raise unless `value` is an integer of at least `minimum`."""
    cure = f"Give an integer of at least {minimum}."
    if not is_integer(value):
        wrong = f"`{argument}` is {describe_value(value)}."
        raise type_error(function, wrong, cure)
    if operator.index(value) < minimum:
        raise value_error(function, f"`{argument}` is {value}.", cure)


def is_integer(value: Any) -> bool:
    """Return whether `value` is an integer: Python's, NumPy's, or a scalar array."""
    try:
        operator.index(value)  # all arrays have `__index__`, of any dtype and shape
    except TypeError:
        return False
    return not isinstance(value, bool)


def check_choice(
    function: str, argument: str, value: object, choices: Iterable[str]
) -> None:
    """Raise a `ValueError` unless `value` is one of the strings `choices`."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        wrong = f"`{argument}` is {describe_value(value)}."
        cure = nearest(value, choices)
        raise value_error(function, wrong, cure)


def check_bool(function: str, argument: str, value: object) -> None:
    """Raise a `TypeError` unless `value` is True or False."""
    if not isinstance(value, bool | np.bool_):
        wrong = f"`{argument}` is {describe_value(value)}."
        raise type_error(function, wrong, "Give True or False.")


def check_unmasked(function: str, argument: str, value: object) -> None:
    """Raise a `ValueError` for a masked array, or a list with one, as JAX does."""
    items = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(x, np.ma.MaskedArray) for x in items):
        wrong = f"`{argument}` is a masked array, or contains one; JAX has no masks."
        cure = "Fill it, `array.filled(number)`, or give the entries that are not "
        cure += "masked, `array.compressed()`."
        raise value_error(function, wrong, cure)


def check_integers(function: str, value: object, subject: str) -> None:
    """Raise a `ValueError` for integers that JAX's dtype for them cannot hold.

    `subject` says what the value is.
    """
    if not isinstance(value, int | np.integer | np.ndarray):
        return
    numbers = np.asarray(value)
    if numbers.dtype.kind in "iuO" and numbers.size:
        unsigned = numbers.dtype.kind == "u" and not isinstance(value, int)
        dtype = jax.dtypes.canonicalize_dtype(np.uint64 if unsigned else np.int64)
        limits, low, high = np.iinfo(dtype), numbers.min(), numbers.max()
        if low < limits.min or high > limits.max:
            wrong = f"{low if low < limits.min else high}, too large for {dtype}."
            cure = "Give a float, or `jax.config.update('jax_enable_x64', True)`."
            raise value_error(function, f"{subject} with {wrong}", cure)


def check_same(
    function: str, wrong: str, before: PyTree, after: PyTree, cure: str
) -> None:
    """Raise a `StructureError` unless two pytrees have the same structs.

    `wrong` describes the misfit, and the order in which the message lists both.
    """
    lines = differences(before, after)
    if lines:
        raise structure_error(function, f"{wrong}:{bullets(lines)}", cure)


def check_carry(function: str, who: str, before: PyTree, after: PyTree) -> None:
    """Raise a `StructureError` unless a step returns a carry like the one it got."""
    wrong = f"the carry that {who} returns differs from the carry that it got; first "
    wrong += "what it got, then what it returned"
    cure = "Keep the structure, shapes and dtypes of the carry, for instance `0.0` in "
    cure += "place of `0`; return values that differ from step to step as outputs."
    check_same(function, wrong, before, after, cure)


def check_dense(function: str, subject: str, tree: PyTree, cure: str) -> None:
    """Raise a `TypeError` if a node is a sparse matrix of JAX.

    `subject` names the tree.
    """
    for name, node in leaves_with_names(tree, is_leaf=is_sparse):
        if is_sparse(node):
            where = f" at `.{name}`" if name else ""
            wrong = f"{subject}{where} is a sparse {type(node).__name__}."
            raise type_error(function, wrong, cure)


def common_size(
    function: str, what: str, tree: PyTree, axes: int | Sequence[int | None], cure: str
) -> int:
    """Return the size of all arrays along their axes; raise unless it is the same.

    `axes` is one axis for all leaves, or one for each, `None` for leaves that do not
    count. `what` names the tree in errors.
    """
    sizes, wrong = {}, []
    leaves = leaves_with_names(tree)
    each = axes if isinstance(axes, Sequence) else [axes] * len(leaves)
    for (name, leaf), axis in zip(leaves, each, strict=True):
        if axis is None:
            continue
        part = f"{f'`.{name}`' if name else what} is {leaf_text(leaf)}"
        if -leaf.ndim <= axis < leaf.ndim:
            size = leaf.shape[axis]
            sizes[f"{part}: {size} along axis {axis}"] = size
        else:
            wrong.append(f"{part} and has no axis {axis}")
    if not wrong and len(set(sizes.values())) == 1:
        return next(iter(sizes.values()))
    lines = wrong or list(sizes)
    why = bullets(lines) if lines else " it contains no arrays."
    raise structure_error(function, f"{what} cannot be split:{why}", cure)
