"""Run one of several functions, chosen by an index: the primitive `choose_p`.

It is `lax.switch` until its index is batched. Under `jax.vmap` with an index per
example, `lax.switch` copies every operand of every branch per example, including
closed-over parameters, and evaluates each branch on inputs of all examples. Whether the
index is batched is known only when transformations are applied (`vmap` may be applied
after `jit` or `grad`), which requires a primitive. The pattern follows JAX's page on
custom primitives, "How JAX primitives work".

Vmap. With one index for the whole batch, one branch runs, as in `lax.switch`. With an
index per example, each branch that any example chose runs once for the whole batch,
without copies of its parameters, and the results are selected lane by lane. (A branch
of only elementwise operations always runs: fused into the select, it costs less than
the test.)

A branch may return an inf or NaN in a lane that did not choose it. The select drops it
from the values, but in reverse mode `0 * inf` would reach the gradients of the input
and of the parameters. In `vmap` of `grad`, all gradients are per lane and are selected
too. In `grad` of `vmap`, they are summed over the lanes. Only in this case, lanes that
did not choose a branch get the operands of a lane that did, with stopped gradients, so
the branch runs only on inputs of examples that chose it. This costs a masked copy of
the batched operands per branch.

A branch with a `while_loop` or a callback always gets such operands: the other lanes
must neither prolong the loop nor raise.

An outer `vmap`. In an ensemble, each member with its own batch, there may be members in
which no example chose the branch. `_masked_operand(mask, x)` is `x`, but each such
member, whose mask is all false, gets the `x` of a member whose mask is not: all
operands that differ between members, so that together they belong to a choice that was
made. The tangent of a replaced operand is zero. Operands that all members share are not
copied.

Owners. A residual exists in one branch only. It would be a select of one value and of
zeros, a copy for each lane; so the branch that computes it is its owner, and under
`vmap` the others' zeros are never selected: nobody reads them.

Derivatives. The derivative of a choice is two choices with the same index: the first
computes the outputs and the residuals, the second is the linear map from input tangents
to output tangents. Only the second is transposed. So reverse mode stores and computes
the same as for `lax.switch`.
"""

import contextlib
import functools as ft
import itertools as it
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import equinox as eqx
import equinox.internal as eqxi
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax import lax
from jax.core import Tracer
from jax.custom_batching import custom_vmap
from jax.custom_derivatives import SymbolicZero
from jax.experimental.key_reuse._core import (
    Forward,
    KeyReuseSignature,
    key_reuse_signatures,
)
from jax.extend.core import Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Bool, Int

from ._errors import structure_error
from ._jaxprs import (
    Bodies,
    Entry,
    Equation,
    Flow,
    as_function,
    depends_on,
    effects,
    has_refs,
    hoist,
    is_elementwise,
    is_literal,
    may_loop_or_call_back,
    on_values,
    open_jaxpr,
    refs_of,
    register,
    trace,
    used_inputs,
)
from ._mesh_context import is_explicit, is_staged
from ._tree import as_arrays, as_data, as_keys, broadcast_mask, differences, fill
from ._types import ClosedJaxpr, PyTree


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
    `lax.switch`. For `vmap` with an index per example, see `_batch`.

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

    def traced_of(branch: Callable[..., Any]) -> _Traced:
        kept: list[Any] = []

        def flat(*leaves: Any) -> Any:
            out = branch(*eqx.combine(jtu.tree_unflatten(structure, leaves), static))
            arrays, rest = eqx.partition(as_arrays(out), eqx.is_array)
            out_leaves, out_structure = jtu.tree_flatten(arrays)
            kept[:] = [out_structure, rest]
            return out_leaves

        return _Traced(trace(flat, *leaves), *kept)

    plain = {i: b for i, b in enumerate(branches) if not isinstance(b, Like)}
    by_position = {i: traced_of(branch) for i, branch in plain.items()}
    first = next(iter(by_position.values()))
    avals = first.jaxpr.out_avals
    # A branch made of these shapes must have the sharding, too, where it is in a type.
    shardings = _shardings_to_agree(avals)
    pairs = zip(avals, shardings, strict=True)
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=s) for a, s in pairs]
    shapes, _ = first.assemble(structs)
    for i, branch in enumerate(branches):
        if isinstance(branch, Like):
            with _mesh_of(next(filter(None, shardings), None)):
                by_position[i] = traced_of(ft.partial(branch.fn, shapes))
    traced = [by_position[i] for i in range(len(branches))]

    dtypes = _common_dtypes(function, names, traced)
    same = _handed_on([t.jaxpr for t in traced])
    changed = [k for k, source in enumerate(same) if source is None]

    def changed_outputs(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
        """Return a branch with the outputs that change, in common dtypes, none weak."""
        pairs = list(zip(jaxpr.out_avals, dtypes, strict=True))
        right = all(a.dtype == d and not a.weak_type for a, d in pairs)
        if right and len(changed) == len(pairs):
            return jaxpr

        def function(*leaves: Any) -> Any:
            outputs = jaxpr_as_fun(jaxpr)(*leaves)
            return [lax.convert_element_type(outputs[k], dtypes[k]) for k in changed]

        return trace(function, *leaves)

    jaxprs = [changed_outputs(t.jaxpr) for t in traced]
    # A choice has no effects on references: branches take and return their values.
    refs, into = refs_of(*jaxprs)
    inputs = [*[ref[...] for ref in refs], *leaves]
    if refs:
        jaxprs = [trace(on_values(j, refs, into), *inputs) for j in jaxprs]
    # Values that the branches close over (parameters, tracers) become operands.
    constants, jaxprs = hoist(jaxprs, inputs)
    chosen = iter(_bind(index, [*constants, *inputs], jaxprs))
    outputs = [next(chosen) if source is None else leaves[source] for source in same]
    for ref, value in zip(into, chosen, strict=True):
        ref[...] = value
    # Outside `jit`, a constant output is a NumPy scalar.
    arrays = [y if isinstance(y, jax.Array) else jnp.asarray(y) for y in outputs]
    return traced[0].assemble(arrays)


class _Traced(NamedTuple):
    """A branch as a jaxpr of its array leaves, with the structure of its output."""

    jaxpr: ClosedJaxpr
    structure: Any
    static: PyTree

    def assemble(self, leaves: Sequence[Any]) -> PyTree:
        return eqx.combine(jtu.tree_unflatten(self.structure, leaves), self.static)


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
            both = [t.jaxpr.out_avals for t in (traced[0], branch)]
            shardings = map(_shardings_to_agree, both)
            lines = [
                f"{a} against {b}"
                for a, b, ours, theirs in zip(*both, *shardings, strict=True)
                if ours != theirs
            ]
        if lines:
            wrong = f"the outputs of `{names[0]}` and `{name}` differ: "
            wrong += f"{'; '.join(lines)}."
            cure = "Make all branches return the same structure, shapes and dtypes "
            cure += "(and shardings, on explicit mesh axes)."
            raise structure_error(function, wrong, cure)
    return dtypes


def _shardings_to_agree(avals: Sequence[Any]) -> list[Any]:
    """Return the shardings in the types of outputs, `None` for those not in a type.

    Outside a program one branch is evaluated, so types need not agree.
    """
    shardings = list(map(_explicit_sharding, avals))
    return shardings if any(shardings) and is_staged() else [None] * len(avals)


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

    def sources(jaxpr: ClosedJaxpr) -> list[int | None]:
        inner, _ = open_jaxpr(jaxpr)
        # By identity, since an output may be a literal, which has no hash.
        inputs = {id(v): k for k, v in enumerate(inner.invars)}
        return [inputs.get(id(v)) for v in inner.outvars]

    columns = zip(*map(sources, jaxprs), strict=True)
    return [column[0] if len(set(column)) == 1 else None for column in columns]


choose_p = Primitive("eqx_pipe_choose")
choose_p.multiple_results = True


def _bind(
    index: Any,
    operands: Sequence[Any],
    branches: Sequence[ClosedJaxpr],
    owners: Sequence[int | None] | None = None,
) -> list[Any]:
    """Run the branch at `index`, clamped to the existing branches, on `operands`.

    All branches take the operands and return the same types. `index` is an integer, or
    a boolean for two branches. `owners[k]` is the only branch whose output `k` is used
    (the others may return anything there), or `None`.
    """
    if owners is None:
        owners = (None,) * len(branches[0].out_avals)
    branches = tuple(_as_varying(branches, operands))
    return choose_p.bind(index, *operands, branches=branches, owners=tuple(owners))


def _as_varying(
    branches: Sequence[ClosedJaxpr], operands: Sequence[Any]
) -> Sequence[ClosedJaxpr]:
    """Give the branches the same type inside `shard_map`.

    There an array's type has the mesh axes over which it varies; constants such as
    zeros vary over none, and `lax.cond` rejects branches that differ in this.
    """
    varying = [[_varying_axes(a) for a in b.out_avals] for b in branches]
    # A value may be cast to vary over more axes, but not over fewer.
    union = [frozenset().union(*column) for column in zip(*varying, strict=True)]

    def cast(branch: ClosedJaxpr) -> ClosedJaxpr:
        def function(*args: Any) -> list[Any]:
            outputs = jaxpr_as_fun(branch)(*args)
            pairs = zip(outputs, missing, strict=True)
            return [lax.pcast(y, tuple(a), to="varying") if a else y for y, a in pairs]

        axes = [_varying_axes(a) for a in branch.out_avals]
        missing = [u - f for u, f in zip(union, axes, strict=True)]
        return trace(function, *operands) if any(missing) else branch

    return [cast(branch) for branch in branches]


def _varying_axes(aval: Any) -> frozenset[str]:
    if hasattr(aval, "mat"):
        return aval.mat.varying
    return getattr(aval, "vma", frozenset())  # the name before JAX 0.10.2


def varying_as(index: Any, tree: PyTree) -> PyTree:
    """Make floats in `tree` vary over the same axes of `shard_map` as `index`.

    If each device chooses for itself, no branch may sum over the devices: it would wait
    for devices that chose another branch. So shared parameters are cast to vary over
    the devices before the choice, and their gradients are summed there.
    """
    axes = _varying_axes(jax.typeof(index))
    if not axes:
        return tree

    def vary(leaf: Any) -> Any:
        if not (eqx.is_array(leaf) and jnp.issubdtype(leaf.dtype, jnp.inexact)):
            return leaf
        missing = axes - _varying_axes(jax.typeof(leaf))
        return lax.pcast(leaf, tuple(missing), to="varying") if missing else leaf

    return jtu.tree_map(vary, tree)


def _zeros(examples: Sequence[Any]) -> list[Any]:
    """Return zeros like the examples; one array for each shape, dtype and sharding."""
    kinds = [(x.shape, x.dtype, _explicit_sharding(x)) for x in examples]
    made = {}
    for shape, dtype, sharding in dict.fromkeys(kinds):
        with _mesh_of(sharding):
            zero = lax.full(shape, 0, dtype, sharding=sharding)
        made[shape, dtype, sharding] = zero
    return [made[kind] for kind in kinds]


def _explicit_sharding(aval: Any) -> Any:
    """Return the sharding of an array if it is part of the array's type."""
    sharding = getattr(aval, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    return sharding if mesh is not None and is_explicit(mesh) else None


def _mesh_of(sharding: Any) -> AbstractContextManager[object]:
    """Enter the mesh of an explicit sharding, without which JAX would drop it."""
    if sharding is None:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(sharding.mesh)


def _switch(index: Any, *operands: Any, branches: Any, **_: Any) -> list[Any]:
    functions = [jaxpr_as_fun(branch) for branch in branches]
    if len(functions) == 1:
        return functions[0](*operands)
    if jnp.result_type(index) == jnp.bool_:
        return lax.cond(index, functions[1], functions[0], *operands)
    return lax.switch(index, functions, *operands)


@choose_p.def_impl
def _evaluate(index: Any, *operands: Any, branches: Any, **_: Any) -> list[Any]:
    chosen = int(np.clip(np.asarray(index).astype(np.int64), 0, len(branches) - 1))
    return jaxpr_as_fun(branches[chosen])(*operands)


@choose_p.def_effectful_abstract_eval
def _abstract(index: Any, *operands: Any, branches: Any, **_: Any) -> Any:
    # Without them, JAX would drop a choice with unused outputs, including its prints.
    return list(branches[0].out_avals), frozenset(it.chain(*map(effects, branches)))


mlir.register_lowering(choose_p, mlir.lower_fun(_switch, multiple_results=True))


def _remake(eqn: Equation, bodies: Bodies, inputs: list[Any]) -> list[Any]:
    index, *operands = inputs
    constants, branches = hoist([trace(body, *operands) for body in bodies], operands)
    added = len(branches[0].out_avals) - len(eqn.outvars)
    owners = (*eqn.params["owners"], *[None] * added)
    return _bind(index, [*constants, *operands], branches, owners)


def _flow(flow: Flow, eqn: Equation, marks: list[bool]) -> list[bool]:
    """Propagate marks as for `lax.switch`; owned outputs are not selected."""
    by_branch = [flow.run(branch, marks[1:]) for branch in eqn.params["branches"]]
    pairs = zip(eqn.params["owners"], zip(*by_branch, strict=True), strict=True)
    return [marks[0] or any(c) if owner is None else c[owner] for owner, c in pairs]


register(choose_p.name, Entry("branches", ("branches",), remake=_remake, flow=_flow))
# Otherwise `jax.debug_key_reuse` takes it to use up every key that it gets.
key_reuse_signatures[choose_p] = key_reuse_signatures[lax.cond_p]


def _batch(
    axis_data: Any, args: Any, dims: Any, *, branches: Any, owners: Any
) -> tuple[list[Any], list[int | None]]:
    # Each operand may have a different mapped axis.
    pairs = zip(args, dims, strict=True)
    args = [x if dim in (None, 0) else jnp.moveaxis(x, dim, 0) for x, dim in pairs]
    index, *operands = args
    index_batched, *batched = [dim is not None for dim in dims]

    def over_batch(
        branch: ClosedJaxpr, batched: Sequence[bool], out_batched: Sequence[bool]
    ) -> Any:
        return jax.vmap(
            as_function(branch),
            in_axes=[0 if b else None for b in batched],
            out_axes=[0 if b else None for b in out_batched],
            axis_name=axis_data.name,
            axis_size=axis_data.size,
            # Without it, a sharding constraint in a branch would gather a sharded
            # batch.
            spmd_axis_name=axis_data.spmd_name,
        )

    if not index_batched:
        # The branches of a choice must return the same shapes: if one branch batches an
        # output, all branches do.
        depends = [depends_on(b, batched, axis_data.name) for b in branches]
        out_batched = [any(outputs) for outputs in zip(*depends, strict=True)]
        vmapped = [
            trace(over_batch(b, batched, out_batched), *operands) for b in branches
        ]
        out = _bind(index, operands, vmapped, owners)
        return out, [0 if b else None for b in out_batched]

    masks = _masks(index, len(branches))
    # What a branch computes from operands that are not batched stays so: a parameter
    # that is saved for the backward pass would otherwise be copied for each example.
    depends = [depends_on(branch, batched, axis_data.name) for branch in branches]
    results = []
    for mask, branch, out_batched in zip(masks, branches, depends, strict=True):
        run = over_batch(branch, batched, out_batched)
        results.append(_run_where(mask, branch, run, operands, batched))
    outputs, out_dims = [], []
    for k, owner in enumerate(owners):
        if owner is not None:
            # Other branches return zeros here, which nobody reads: no select.
            outputs.append(results[owner][k])
            out_dims.append(0 if depends[owner][k] else None)
            continue
        pairs = zip(results, depends, strict=True)
        choices = [r[k] if d[k] else r[k][None] for r, d in pairs]
        outputs.append(_select(masks, choices))
        out_dims.append(0)
    return outputs, out_dims


def _masks(index: Array, num_branches: int) -> list[Bool[Array, " batch"]]:
    """Return a mask for each branch of the examples that chose it."""
    if num_branches == 1:
        return [jnp.ones(index.shape, bool)]
    if index.dtype == jnp.bool_:
        return [~index, index]
    inner = [index == i for i in range(1, num_branches - 1)]
    # The first and last branch include indices out of range, as `lax.switch` clamps.
    return [index <= 0, *inner, index >= num_branches - 1]


def _run_where(
    mask: Bool[Array, " batch"],
    branch: ClosedJaxpr,
    function: Any,
    operands: Sequence[Any],
    batched: Sequence[bool],
) -> list[Any]:
    """Run a branch, batched as `function`; only lanes in `mask` are used.

    Operands that the branch does not use are left out, so they get no zero gradients.
    """
    # Otherwise a gradient of zeros would be allocated per lane for each unused operand.
    used = used_inputs(branch)
    read = list(it.compress(operands, used))
    # The data of keys: JAX takes a `custom_jvp` to use up every key that it gets.
    inputs = [mask, *map(as_data, read)]
    read_batched = list(it.compress(batched, used))
    elementwise = is_elementwise(branch)

    def plain(mask: Any, *data: Any) -> list[Any]:
        operands = map(as_keys, data, read)
        return list(function(*fill([None] * len(used), used, operands)))

    def guarded(mask: Any, *operands: Any) -> list[Any]:
        return plain(mask, *_guard(mask, operands, read_batched))

    if may_loop_or_call_back(branch):
        # The values of other lanes have an effect beside the outputs.
        return _if_any(guarded, *inputs)

    # Operands are guarded only in the derivative: primal outputs are selected lane by
    # lane, and need no masked copy.
    @jax.custom_jvp
    def run(mask: Any, *operands: Any) -> list[Any]:
        chosen = plain if elementwise else ft.partial(_if_any, plain)
        return chosen(mask, *operands)

    def run_jvp(primals: Any, tangents: Any) -> Any:
        moves = [not isinstance(t, SymbolicZero) for t in tangents]

        # The guard is part of what is differentiated, so it holds for derivatives of
        # any order.
        def moving(*moved: Any) -> list[Any]:
            full = fill(primals, moves, moved)
            return guarded(*full) if elementwise else _if_any(guarded, *full)

        moved = list(it.compress(tangents, moves))
        if elementwise:  # if no lane is in the mask, the gradients are zero
            is_open = eqxi.unvmap_any(primals[0])
            moved = [jnp.where(is_open, t, jnp.zeros_like(t)) for t in moved]
        return jax.jvp(moving, list(it.compress(primals, moves)), moved)

    # With array zeros every operand would seem to have a tangent, even parameters of
    # frozen layers.
    run.defjvp(run_jvp, symbolic_zeros=True)
    return run(*inputs)


def _if_any(function: Any, mask: Any, *operands: Any) -> list[Any]:
    """Return `function(mask, *operands)` if the mask has any lane, else zeros."""
    inputs = [mask, *operands]
    taken = trace(function, *inputs)
    skipped = trace(lambda *inputs: _zeros(taken.out_avals), *inputs)
    # One boolean over the whole batch, for any number of outer `vmap`s, so the branch
    # can be skipped.
    return _bind(eqxi.unvmap_any(mask), inputs, [skipped, taken])


def _guard(
    mask: Bool[Array, " batch"], operands: Sequence[Any], batched: Sequence[bool]
) -> list[Any]:
    """Return the operands with a lane of the mask copied into all lanes outside it.

    Operands that are not batched here may be batched by an outer `vmap`; see
    `masked_operand_p`.
    """
    # An empty batch has no lane to copy.
    if mask.shape[0] == 0:
        return list(operands)
    values = list(it.compress(operands, batched))
    # Without gradients: those of the copies would be added to those of the lane.
    spare = _lanes(_first_lane)(mask, list(map(lax.stop_gradient, values)))
    guarded = [_by_lane(mask, x, s) for x, s in zip(values, spare, strict=True)]
    pairs = zip(operands, batched, strict=True)
    others = [x if b else _masked_operand(mask, x) for x, b in pairs]
    return fill(others, batched, guarded)


def _select(masks: Sequence[Bool[Array, " batch"]], choices: Sequence[Any]) -> Any:
    """Select the choice whose mask is true, lane by lane."""
    shape = (masks[0].shape[0], *choices[0].shape[1:])
    out = jnp.broadcast_to(choices[-1], shape)
    for mask, choice in zip(masks[:-1], choices[:-1], strict=True):
        out = _by_lane(mask, jnp.broadcast_to(choice, shape), out)
    return out


def _by_lane(mask: Bool[Array, " batch"], x: Any, other: Any) -> Any:
    """Return `x` in the lanes of the mask, and `other` in the other lanes."""
    return lax.select(broadcast_mask(mask, x), x, jnp.broadcast_to(other, x.shape))


# Only "fancy" rules get the name and the size of the batch axis.
batching.fancy_primitive_batchers[choose_p] = _batch


masked_operand_p = Primitive("eqx_pipe_masked_operand")


def _masked_operand(
    mask: Bool[Array, "*batch"], x: Any, *, is_tangent: bool = False
) -> Any:
    """Return `x`, or another member's `x` where the mask is batched and all false.

    The other member's mask is not all false. A tangent becomes zero instead.

    Zeros for the cotangents of such members alone would not suffice: their values reach
    the gradients of operands that all members share. A primitive, since it must be free
    if no `vmap` follows, and must not batch an operand that all members share.
    """
    return masked_operand_p.bind(mask, x, is_tangent=is_tangent)


def _batch_masked(args: Any, dims: Any, *, is_tangent: bool) -> Any:
    (mask, x), (mask_dim, x_dim) = args, dims
    if mask_dim is None or x_dim is None:
        return _masked_operand(mask, x, is_tangent=is_tangent), x_dim
    mask, x = jnp.moveaxis(mask, mask_dim, 0), jnp.moveaxis(x, x_dim, 0)
    if mask.shape[0] == 0:
        return x, 0
    is_open = mask.any(tuple(range(1, mask.ndim)))
    other = jnp.zeros_like(x) if is_tangent else _of_one_open(is_open, x)
    x = _by_lane(is_open, x, other)
    # Bound again, since an outer `vmap` may have members in which no mask is true.
    return _masked_operand(is_open, x, is_tangent=is_tangent), 0


def _of_one_open(is_open: Any, x: Any) -> Any:
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x  # draws from any key are valid
    return lax.stop_gradient(lax.dynamic_index_in_dim(x, jnp.argmax(is_open)))


def _jvp_masked(primals: Any, tangents: Any, *, is_tangent: bool) -> Any:
    (mask, x), (_, t) = primals, tangents
    zero = type(t) is ad.Zero
    y = _masked_operand(mask, x, is_tangent=is_tangent)
    return y, t if zero else _masked_operand(mask, t, is_tangent=True)


def _transpose_masked(cotangent: Any, mask: Any, x: Any, *, is_tangent: bool) -> Any:
    if type(cotangent) is not ad.Zero:
        cotangent = _masked_operand(mask, cotangent, is_tangent=True)
    return [None, cotangent]


def _identity(mask: Any, x: Any, *, is_tangent: bool) -> Any:
    return x


# The mask selects a lane, but the values come only from the operand.
register(masked_operand_p.name, Entry("operation", flow=lambda _, __, marks: marks[1:]))
masked_operand_p.def_impl(_identity)
masked_operand_p.def_abstract_eval(_identity)
_lowered = mlir.lower_fun(_identity, multiple_results=False)
mlir.register_lowering(masked_operand_p, _lowered)
key_reuse_signatures[masked_operand_p] = KeyReuseSignature(Forward(1, 0))
ad.primitive_jvps[masked_operand_p] = _jvp_masked
ad.primitive_transposes[masked_operand_p] = _transpose_masked
batching.primitive_batchers[masked_operand_p] = _batch_masked


def _first_lane(mask: Any, operands: list[Any]) -> list[Any]:
    """Return the operands of one lane in the mask; not differentiable.

    With `_lanes`, each member of an outer `vmap` gets its own lane, or that of another
    member if its mask is all false.
    """
    lane = lax.argmax(mask, 0, jnp.int32)

    def pick(x: Any) -> Any:
        start = [lane, *[jnp.int32(0)] * (x.ndim - 1)]
        shape = (1, *x.shape[1:])
        # `argmax` is never negative; supporting negative indices would cost a
        # comparison and a select per operand.
        return lax.dynamic_slice(x, start, shape, allow_negative_indices=False)

    return [pick(x) for x in operands]


def _lanes(inner: Any) -> Any:
    """Return `inner` with a rule for one more level of `vmap`."""

    @custom_vmap
    def lanes(mask: Any, operands: list[Any]) -> list[Any]:
        return inner(mask, operands)

    @lanes.def_vmap
    def rule(axis_size: int, in_batched: Any, mask: Any, operands: list[Any]) -> Any:
        mask_batched, batched = in_batched
        in_axes = (0 if mask_batched else None, [0 if b else None for b in batched])

        def outer(mask: Any, operands: list[Any]) -> list[Any]:
            picked = jax.vmap(inner, in_axes, axis_size=axis_size)(mask, operands)
            if not mask_batched or axis_size == 0:
                return picked
            is_open = mask.reshape(axis_size, -1).any(1)
            first = jnp.argmax(is_open)
            spare = [lax.dynamic_index_in_dim(x, first) for x in picked]
            return [_by_lane(is_open, x, s) for x, s in zip(picked, spare, strict=True)]

        # Also with a rule for the next level: `vmap` would batch a plain `outer`
        # operation by operation.
        return _lanes(outer)(mask, operands), [True] * len(operands)

    return lanes


class _Linearized(NamedTuple):
    """One branch, split into a forward part and a linear map.

    `forward` maps operands to outputs followed by `saved`. The linear map is
    `structure` with its leaves filled in: leaf `k` is operand `i` or saved value `j` if
    `sources[k]` is `("operand", i)` or `("saved", j)`.
    """

    forward: ClosedJaxpr
    num_saved: int
    sources: list[tuple[str, int]]
    structure: Any


def _jvp(primals: Any, tangents: Any, *, branches: Any, owners: Any) -> Any:
    index, *operands = primals
    moves = [type(t) is not ad.Zero for t in tangents[1:]]
    moving = list(it.compress(tangents[1:], moves))
    out_avals = branches[0].out_avals
    num_out = len(out_avals)
    inexact = [jnp.issubdtype(aval.dtype, jnp.inexact) for aval in out_avals]

    parts = [_linearize(branch, operands, moves, inexact) for branch in branches]
    # A saved value has its branch as owner: under `vmap` it is not selected, and is not
    # batched if it does not depend on the example.
    savers = it.chain(*([i] * part.num_saved for i, part in enumerate(parts)))
    forward = _with_all_saved(parts, num_out, operands)
    results = _bind(index, operands, forward, (*owners, *savers))
    outputs, saved = results[:num_out], results[num_out:]
    still = [ad.Zero(aval.to_tangent_aval()) for aval in out_avals]
    if not any(inexact) or not moving:
        return outputs, still

    # Choose one of the branches' linear maps, and apply it to the tangents.
    wanted = sorted({i for p in parts for kind, i in p.sources if kind == "operand"})
    position = {i: k for k, i in enumerate(wanted)}
    needed = [operands[i] for i in wanted]
    starts = list(it.accumulate((p.num_saved for p in parts), initial=len(needed)))
    first = starts[-1]

    def linear(part: _Linearized, start: int) -> Any:
        def function(*args: Any) -> Any:
            kinds = part.sources
            at = [position[i] if kind == "operand" else start + i for kind, i in kinds]
            leaves = [args[k] for k in at]
            return jtu.tree_unflatten(part.structure, leaves)(*args[first:])

        return function

    inputs = [*needed, *saved, *moving]
    maps = [
        trace(linear(part, start), *inputs)
        # Not strict: `starts` also has the end of the last part.
        for part, start in zip(parts, starts, strict=False)
    ]
    kept_owners = list(it.compress(owners, inexact))
    moved = _bind(index, inputs, maps, kept_owners)
    return outputs, fill(still, inexact, moved)


def _linearize(
    branch: ClosedJaxpr, operands: Sequence[Any], moves: list[bool], inexact: list[bool]
) -> _Linearized:
    structure = None

    # The residuals are known only after a trace of the branch: they are the leaves of
    # the linear map, a pytree. The second trace returns each once, and none that is an
    # operand.
    def forward(*args: Any) -> Any:
        nonlocal structure

        def function(*primals: Any) -> Any:
            outputs = jaxpr_as_fun(branch)(*fill(args, moves, primals))
            return list(it.compress(outputs, inexact)), outputs

        primals = it.compress(args, moves)
        _, linear, outputs = jax.linearize(function, *primals, has_aux=True)
        leaves, structure = jtu.tree_flatten(linear)
        return outputs, leaves

    traced = trace(forward, *operands)
    num_out = len(branch.out_avals)
    # An operand that the linear map needs is not saved again: parameters are large, and
    # would be stored twice.
    arguments = {id(v): i for i, v in enumerate(traced.jaxpr.invars)}
    kept: dict[int, int] = {}  # identity of a saved variable -> its position
    positions, sources = [], []
    for position, variable in enumerate(traced.jaxpr.outvars[num_out:], num_out):
        name = id(variable)
        if not is_literal(variable) and name in arguments:
            sources.append(("operand", arguments[name]))
            continue
        if is_literal(variable) or name not in kept:
            kept[name] = len(positions)
            positions.append(position)
        sources.append(("saved", kept[name]))

    def pruned(*args: Any) -> Any:
        results = jaxpr_as_fun(traced)(*args)
        return results[:num_out] + [results[p] for p in positions]

    pruned_jaxpr = trace(pruned, *operands)
    return _Linearized(pruned_jaxpr, len(positions), sources, structure)


def _with_all_saved(
    parts: Sequence[_Linearized], num_out: int, operands: Sequence[Any]
) -> list[ClosedJaxpr]:
    """Make the forward parts agree: each returns zeros for values others save."""
    saved_avals = [part.forward.out_avals[num_out:] for part in parts]

    def padded(chosen: int) -> Any:
        def forward(*args: Any) -> Any:
            results = jaxpr_as_fun(parts[chosen].forward)(*args)
            before = list(it.chain(*saved_avals[:chosen]))
            filler = _zeros(before + list(it.chain(*saved_avals[chosen + 1 :])))
            values, others = results[num_out:], len(before)
            return [*results[:num_out], *filler[:others], *values, *filler[others:]]

        return forward

    return [trace(padded(i), *operands) for i in range(len(parts))]


def _transpose(
    cotangents: Any, index: Any, *operands: Any, branches: Any, owners: Any
) -> list[Any]:
    linear = [isinstance(x, ad.UndefinedPrimal) for x in operands]
    is_residual = [not is_linear for is_linear in linear]
    residuals = list(it.compress(operands, is_residual))
    # Leave out symbolic zeros, so that branches do not compute with them.
    alive = [type(ct) is not ad.Zero for ct in cotangents]
    cotangents = list(it.compress(cotangents, alive))
    inputs = [*residuals, *cotangents]
    tangents = list(it.compress(operands, linear))

    def backward(branch: ClosedJaxpr, *args: Any) -> list[Any]:
        """Return the cotangents of a branch, for residuals and cotangents."""
        moves = list(it.compress(used_inputs(branch), linear))
        # `linear_transpose` makes zeros for unused operands; they share one array.
        unknown = [x.aval for x in it.compress(tangents, moves)]

        def forward(*moving: Any) -> list[Any]:
            primals = fill([None] * len(moves), moves, moving)
            full = fill(fill(linear, linear, primals), is_residual, args)
            return list(it.compress(as_function(branch)(*full), alive))

        moved, cotangents = (), list(args[len(residuals) :])
        if unknown and has_refs(branch):
            # JAX has no `linear_transpose` of references.
            moved = jax.vjp(forward, *_zeros(unknown))[1](cotangents)
        elif unknown:
            moved = jax.linear_transpose(forward, *unknown)(cotangents)
        unmoved = [x.aval for x, m in zip(tangents, moves, strict=True) if not m]
        rest = fill(list(moves), [not m for m in moves], _zeros(unmoved))
        return fill(rest, moves, moved)

    transposed = [trace(ft.partial(backward, branch), *inputs) for branch in branches]
    # Without owners: every branch has a cotangent for each tangent, which may be zeros.
    results = _bind(index, inputs, transposed)
    return [None, *fill([None] * len(linear), linear, results)]


ad.primitive_jvps[choose_p] = _jvp
ad.primitive_transposes[choose_p] = _transpose
