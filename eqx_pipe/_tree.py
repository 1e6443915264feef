"""Compare pytrees, name their leaves, and make Python values hashable."""

import dataclasses
import functools as ft
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jaxtyping import Array

from ._errors import function_name
from ._types import PyTree


def path_name(path: tuple[Any, ...]) -> str:
    """Join a leaf's key path by dots: names and indices, `""` for the root."""
    return jtu.keystr(path, simple=True, separator=".")


def join_path(prefix: str, segment: object) -> str:
    """Return the path of a child, given its parent's path (`""` for the root)."""
    return f"{prefix}.{segment}" if prefix else str(segment)


def leaves_with_names(
    tree: PyTree, is_leaf: Callable[[Any], bool] | None = None
) -> list[tuple[str, Any]]:
    """Return every leaf with the name of its path."""
    leaves, _ = jtu.tree_flatten_with_path(tree, is_leaf)
    return [(path_name(path), leaf) for path, leaf in leaves]


def on_device(array: Any) -> Array:
    """Return an array as a JAX array, in the dtype that JAX would use.

    `jnp.asarray` would compile a program for each shape of a NumPy array.
    """
    return jax.device_put(array) if isinstance(array, np.ndarray) else array


def is_key_array(x: Any) -> bool:
    """Return whether `x` is an array of new-style PRNG keys."""
    return eqx.is_array(x) and jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def is_sparse(x: object) -> bool:
    """Return whether `x` is a sparse matrix of JAX, such as a `BCOO`."""
    # If nobody imported the module, there is no such matrix.
    sparse = sys.modules.get("jax.experimental.sparse")
    return sparse is not None and isinstance(x, sparse.JAXSparse)


def is_ref(x: object) -> bool:
    """Return whether `x` is a reference of JAX (`jax.new_ref`), concrete or traced."""
    return isinstance(x, jax.Ref)


def as_data(leaf: Any) -> Any:
    """Return the raw data of PRNG keys, for buffers and files; else the leaf.

    Of a struct, return the struct of the raw data.
    """
    if not hasattr(leaf, "dtype") or key_kind(leaf) is None:
        return leaf
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return jax.eval_shape(jax.random.key_data, leaf)
    return jax.random.key_data(leaf)


def as_keys(data: object, like: object) -> Any:
    """Return raw data as keys of the kind of `like`, if that holds keys (`as_data`)."""
    impl = key_kind(like)
    if impl is None:
        return data
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def key_kind(like: Any) -> Any:
    """Return the kind of PRNG keys of an array or a struct; `None` for numbers."""
    if not jnp.issubdtype(like.dtype, jax.dtypes.prng_key):
        return None
    return _kind_of(like.dtype)


@ft.lru_cache(64)
def _kind_of(dtype: Any) -> Any:
    kinds: list[Any] = []
    # JAX returns the kind of arrays and traced arrays only.
    key = jax.ShapeDtypeStruct((), dtype)
    jax.eval_shape(lambda x: kinds.append(jax.random.key_impl(x)), key)
    return kinds[0]


def can_be_traced(x: object) -> bool:
    """Return whether `x` is an array that JAX supports: not NumPy text or objects."""
    if isinstance(x, np.ndarray):
        return x.dtype.kind not in "OSUMmT"
    return isinstance(x, jax.Array)


def struct_of(array: Any, drop: int = 0) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array, without its first `drop` axes."""
    return jax.ShapeDtypeStruct(array.shape[drop:], array.dtype)


def nbytes(array: Any) -> int:
    """Return the bytes of an array or struct; 0 for values without shape and dtype."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if shape is None or dtype is None:
        return 0
    # The dtype of PRNG keys has no size; a threefry key has two words.
    return math.prod(shape) * getattr(dtype, "itemsize", 8)


def is_none(x: object) -> bool:
    """Return whether `x` is None, which JAX treats as a pytree without leaves."""
    return x is None


def fill(
    leaves: Sequence[Any], mask: Sequence[bool], others: Iterable[Any]
) -> list[Any]:
    """Replace the leaves where the mask is true by the others, in order.

    This inverts `itertools.compress(leaves, mask)`.
    """
    following = iter(others)
    return [next(following) if m else x for x, m in zip(leaves, mask, strict=True)]


def combine(arrays: PyTree, rest: PyTree) -> PyTree:
    """Return `arrays` with the leaves of `rest` for `None`.

    Static data come from `arrays`, since `vmap` changes those of a sparse matrix;
    `equinox.combine` requires equal ones.
    """
    leaves, structure = jtu.tree_flatten(arrays, is_leaf=is_none)
    others = jtu.tree_leaves(rest, is_leaf=is_none)
    pairs = zip(leaves, others, strict=True)
    return structure.unflatten([b if a is None else a for a, b in pairs])


def as_arrays(tree: PyTree) -> PyTree:
    """Return `tree` with numbers and NumPy arrays as JAX arrays."""
    return jtu.tree_map(_as_array, tree)


def _as_array(leaf: object) -> Any:
    is_numpy = isinstance(leaf, np.ndarray | np.generic)
    text = is_numpy and not can_be_traced(np.asarray(leaf))
    keep = text or is_ref(leaf) or not eqx.is_array_like(leaf)
    return leaf if keep else jnp.asarray(leaf)


def numpy_as_jax(tree: PyTree) -> PyTree:
    """Convert NumPy arrays in the tree to JAX arrays; Python numbers do not change."""
    return jtu.tree_map(
        lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, tree
    )


def leaf_text(leaf: Any) -> str:
    """Return `float32[3,4]` for an array, and the value and type of other leaves."""
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]"
    return function_name(leaf) or f"{leaf!r} ({type(leaf).__name__})"


def tree_text(tree: PyTree) -> str:
    """Return a short text of a pytree's structure, shapes and dtypes."""
    if tree is None:
        return "None"
    named = leaves_with_names(tree)
    texts = [f"{n}: {leaf_text(x)}" if n else leaf_text(x) for n, x in named[:8]]
    texts += [f"... {len(named) - 8} more"] * (len(named) > 8)
    return texts[0] if jtu.all_leaves([tree]) else "{" + ", ".join(texts) + "}"


def differences(left: PyTree, right: PyTree, free_axis: int | None = None) -> list[str]:
    """Return the differences of two pytrees in structure, shape or dtype, one per line.

    Values of arrays are not compared, nor sizes along `free_axis`; other leaves must be
    equal. The list is empty if the trees agree.
    """
    if (left is None) != (right is None):  # as from a function without `return`
        return [f"{tree_text(left)} against {tree_text(right)}"]
    ours, theirs = dict(leaves_with_names(left)), dict(leaves_with_names(right))
    lines = _only(ours, theirs, "first") + _only(theirs, ours, "second")
    for name, a in ours.items():
        if name in theirs and not _same_form(a, theirs[name], free_axis):
            where = f"at `.{name}`: " if name else ""
            texts = leaf_text(a), leaf_text(theirs[name])
            other = "another of this name" if texts[0] == texts[1] else texts[1]
            lines.append(f"{where}{texts[0]} against {other}")
    if not lines and jtu.tree_structure(left) != jtu.tree_structure(right):
        return [_other_structure(left, right, "") or "static data of the structure"]
    return lines


def _other_structure(left: object, right: object, path: str) -> str:
    """Return the type or static field in which trees with equal leaves differ."""
    where = f"at `.{path}`: " if path else ""
    if type(left) is not type(right):
        return f"{where}{type(left).__name__} against {type(right).__name__}"
    if isinstance(left, eqx.Module):
        for field in dataclasses.fields(left):
            texts = [repr(getattr(tree, field.name)) for tree in (left, right)]
            if field.metadata.get("static") and texts[0] != texts[1]:
                return f"at `.{join_path(path, field.name)}`: {' against '.join(texts)}"
    ours, theirs = (
        jtu.tree_flatten_with_path(tree, is_leaf=lambda x, tree=tree: x is not tree)[0]
        for tree in (left, right)
    )
    below = (
        _other_structure(a, b, join_path(path, path_name(key)))
        for (key, a), (_, b) in zip(ours, theirs, strict=False)
        if key  # not the path of a leaf itself
    )
    return next(filter(None, below), "")


def _only(these: dict[str, Any], others: dict[str, Any], which: str) -> list[str]:
    """Return a line for each leaf in only one tree; a bare leaf has no name."""
    return [
        f"{f'`.{name}`' if name else leaf_text(leaf)} is only in the {which}"
        for name, leaf in these.items()
        if name not in others
    ]


def _same_form(a: Any, b: Any, free_axis: int | None) -> bool:
    a_array = hasattr(a, "shape") and hasattr(a, "dtype")
    b_array = hasattr(b, "shape") and hasattr(b, "dtype")
    if not a_array or not b_array:
        return a_array == b_array and bool(a == b)
    a_shape, b_shape = list(a.shape), list(b.shape)
    if free_axis is not None and len(a_shape) == len(b_shape):
        for shape in (a_shape, b_shape):
            del shape[free_axis : free_axis + 1 or None]  # none, if out of range
    return a_shape == b_shape and a.dtype == b.dtype


class Same:
    """Equal only to a wrapper of the same objects, which it keeps alive."""

    def __init__(self, *values: Any):
        # Kept alive, since the address of a collected object may be reused.
        self.values = values

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Same) or type(other) is not type(self):
            return False
        return list(map(id, self.values)) == list(map(id, other.values))

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.values)))


def as_hashable(value: object) -> Any:
    """Return a hashable key, equal only for values that make the same program."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return (type(value), repr(value))  # 0.0 and -0.0 differ, NaNs are equal
    if type(value) is tuple:
        return (tuple, tuple(map(as_hashable, value)))
    return Same(value)


def static_text(value: object) -> str:
    """Return a value as a short text that is the same in every process."""
    if isinstance(value, str):
        return value
    name = getattr(value, "__name__", None)
    if isinstance(name, str):
        return name
    text = repr(value)
    if " at 0x" in text or "\n" in text or len(text) > 60:
        return type(value).__name__
    return text


class Opaque:
    """A wrapper of Python values that JAX does not flatten, even pytrees."""

    def __init__(self, values: tuple[Any, ...]):
        self.values = values
        self._key = tuple(map(as_hashable, values))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        return f"[{', '.join(map(static_text, self.values))}]"


def broadcast_mask(mask: Any, x: Any) -> Any:
    """Broadcast a mask over the leading axis of `x` to its other axes."""
    return jax.lax.broadcast_in_dim(mask, x.shape, (0,))
