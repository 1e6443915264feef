"""Run one of several functions, chosen by an index."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
from jax import lax
from jax.core import Tracer
from jax.extend.core import jaxpr_as_fun
from jaxtyping import Array, Bool, Int

from .._errors import structure_error
from .._jaxprs import hoist, open_jaxpr, trace
from .._tree import as_arrays, differences
from .._types import ClosedJaxpr, PyTree
from . import autodiff as autodiff  # these two register the primitive's rules
from . import batching as batching
from .primitive import bind, explicit_sharding


class Like(NamedTuple):
    """A branch `fn(shapes, x, state)` that gets the shapes of another branch's output.

    `shapes` is the output `y` of the first other branch, with a `jax.ShapeDtypeStruct`
    for each array.
    """

    fn: Callable[..., Any]


def choose(
    function: str,
    names: Sequence[str],
    index: Bool[Array, ""] | Int[Array, ""],
    branches: Sequence[Callable[..., Any] | Like],
    x: PyTree,
    state: eqx.nn.State | None = None,
) -> tuple[PyTree, eqx.nn.State | None]:
    """Run the branch `(x, state) -> (y, state)` at `index`, clamped as in JAX.

    Without batching this is `lax.cond` (boolean index, two branches: false, true) or
    `lax.switch`. For `vmap` with an index per example, see `batching.py`.

    `function` and `names` name the caller and the branches in errors. A branch may be a
    `Like`. `x` may hold leaves that are not arrays; `y` too, if all branches return the
    same ones.
    """
    no_jit = jax.config.jax_disable_jit  # pyright: ignore[reportAttributeAccessIssue]
    if no_jit and not isinstance(index, Tracer):
        chosen = branches[min(max(int(index), 0), len(branches) - 1)]
        if not isinstance(chosen, Like):  # as `lax.cond`, so that a debugger works
            return chosen(x, state)
    # The state is an operand too: if branches closed over it, the first would mark it
    # as used, and the second would raise "old state".
    arrays, static = eqx.partition((x, state), eqx.is_array)
    # State indices and text cannot be operands of a primitive; branches add them again.
    leaves, structure = jtu.tree_flatten(arrays)
    traced = _trace_branches(branches, leaves, structure, static)
    dtypes = _common_dtypes(function, names, traced)
    same = _handed_on([t.jaxpr for t in traced])
    changed = [k for k, place in enumerate(same) if place is None]
    jaxprs = [_changed_outputs(t.jaxpr, changed, dtypes, leaves) for t in traced]
    # Values that the branches close over (parameters, tracers) become operands.
    constants, jaxprs = hoist(jaxprs, leaves)
    chosen = iter(bind(index, [*constants, *leaves], jaxprs))
    outputs = [next(chosen) if place is None else leaves[place] for place in same]
    # Outside `jit`, a constant output is a NumPy scalar.
    return traced[0].assemble(
        [y if isinstance(y, jax.Array) else jnp.asarray(y) for y in outputs]
    )


class _Traced(NamedTuple):
    """A branch as a jaxpr of its array leaves, with the structure of its output."""

    jaxpr: ClosedJaxpr
    structure: Any
    static: PyTree

    def assemble(self, leaves: Sequence[Any]) -> PyTree:
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.static)


def _trace_branches(
    branches: Sequence[Callable[..., Any] | Like],
    leaves: list[Any],
    structure: Any,
    static: PyTree,
) -> list[_Traced]:
    traced = {
        i: _trace_branch(branch, leaves, structure, static)
        for i, branch in enumerate(branches)
        if not isinstance(branch, Like)
    }
    first = next(iter(traced.values()))
    avals = first.jaxpr.out_avals
    # A branch made of these shapes must have the sharding, too, where it is in a type.
    shapes, _ = first.assemble(
        [
            jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=explicit_sharding(a))
            for a in avals
        ]
    )
    for i, branch in enumerate(branches):
        if isinstance(branch, Like):
            alike = ft.partial(branch.fn, shapes)
            traced[i] = _trace_branch(alike, leaves, structure, static)
    return [traced[i] for i in range(len(branches))]


def _trace_branch(
    branch: Callable[..., Any], leaves: list[Any], structure: Any, static: PyTree
) -> _Traced:
    kept: list[Any] = []

    def flat(*leaves: Any) -> Any:
        out = branch(*eqx.combine(jtu.tree_unflatten(structure, leaves), static))
        arrays, rest = eqx.partition(as_arrays(out), eqx.is_array)
        out_leaves, out_structure = jtu.tree_flatten(arrays)
        kept[:] = [out_structure, rest]
        return out_leaves

    return _Traced(trace(flat, *leaves), *kept)


def _common_dtypes(
    function: str, names: Sequence[str], traced: Sequence[_Traced]
) -> list[Any]:
    """Return the dtype of each output leaf; raise if the branches disagree.

    A weakly typed leaf (made only of Python numbers) takes the dtype of that leaf in
    another branch, as in `lax.cond`.
    """
    # Not strict: different numbers of outputs are reported below, by name.
    columns = list(zip(*(t.jaxpr.out_avals for t in traced), strict=False))
    dtypes = [_common_dtype(column) for column in columns]

    def shapes(branch: _Traced) -> PyTree:
        avals = branch.jaxpr.out_avals
        settled = [*dtypes, *[None] * (len(avals) - len(dtypes))]
        return branch.assemble(
            [
                jax.ShapeDtypeStruct(a.shape, a.dtype if d is None else d)
                for a, d in zip(avals, settled, strict=True)
            ]
        )

    first = shapes(traced[0])
    for name, branch in zip(names[1:], traced[1:], strict=True):
        other = shapes(branch)
        lines = differences(first[0], other[0]) or differences(first, other)
        if not lines:
            avals = zip(traced[0].jaxpr.out_avals, branch.jaxpr.out_avals, strict=True)
            lines = [
                f"{a} against {b}"
                for a, b in avals
                if explicit_sharding(a) != explicit_sharding(b)
            ]
        if lines:
            raise structure_error(
                function,
                f"the outputs of `{names[0]}` and `{name}` differ: {'; '.join(lines)}.",
                "Make all branches return the same structure, shapes and dtypes (and "
                "shardings, on explicit mesh axes).",
            )
    return dtypes


def _common_dtype(avals: Sequence[Any]) -> Any:
    """Return the common dtype of the avals, or `None` if they differ."""
    strong = {a.dtype for a in avals if not a.weak_type} or {avals[0].dtype}
    if len(strong) > 1:
        return None
    (dtype,) = strong
    for aval in avals:
        if aval.dtype != dtype:
            kind = {"i": int, "f": float, "c": complex}.get(aval.dtype.kind)
            # A Python float would promote an int32, so these two disagree.
            if kind is None or jnp.result_type(kind, dtype) != dtype:
                return None
    return dtype


def _handed_on(jaxprs: Sequence[ClosedJaxpr]) -> list[int | None]:
    """Return for each output the input that all branches return for it, or `None`.

    State that no branch changes is not part of the choice: under `vmap` it would become
    one state per example.
    """

    def places(jaxpr: ClosedJaxpr) -> list[int | None]:
        inner, _ = open_jaxpr(jaxpr)
        # By identity, since an output may be a literal, which has no hash.
        inputs = {id(v): k for k, v in enumerate(inner.invars)}
        return [inputs.get(id(v)) for v in inner.outvars]

    columns = zip(*map(places, jaxprs), strict=True)
    return [column[0] if len(set(column)) == 1 else None for column in columns]


def _changed_outputs(
    jaxpr: ClosedJaxpr,
    changed: Sequence[int],
    dtypes: Sequence[Any],
    leaves: Sequence[Any],
) -> ClosedJaxpr:
    """Return a branch with only the outputs that some branch changes, in common dtypes.

    The outputs are not weakly typed.
    """
    pairs = list(zip(jaxpr.out_avals, dtypes, strict=True))
    right = all(a.dtype == d and not a.weak_type for a, d in pairs)
    if right and len(changed) == len(pairs):
        return jaxpr

    def function(*leaves: Any) -> Any:
        outputs = jaxpr_as_fun(jaxpr)(*leaves)
        return [lax.convert_element_type(outputs[k], dtypes[k]) for k in changed]

    return trace(function, *leaves)
