"""`shard_map`: a stage on every device of a mesh, each on its part of the input."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._errors import bullets, structure_error, value_error
from .._jaxprs import as_function, depends_on, trace
from .._mesh_context import check_mesh
from .._stage import Composite, Scope, as_stage
from .._tree import leaves_with_names, numpy_as_jax, tree_text
from .._types import AnyStage, ClosedJaxpr, Key, PyTree, PyTreeDef, StageLike
from .place import (
    SpecsLike,
    constrain_to,
    is_spec_leaf,
    mesh_like,
    names_of,
    resolve,
    shard,
)


class ShardMap(Composite):
    """A stage under `shard_map`; see `shard_map`."""

    stage: AnyStage
    mesh: Mesh = eqx.field(static=True)
    # Not static: specs are leaves, and a dict of them has no hash.
    in_specs: SpecsLike
    out_specs: SpecsLike
    check_vma: bool = eqx.field(static=True)

    def run(
        self, x: PyTree, state: eqx.nn.State | None, scope: Scope
    ) -> tuple[PyTree, eqx.nn.State | None]:
        resolved, structure = resolve("sharding.shard_map", x, self.mesh, self.in_specs)
        specs = [leaf.sharding and leaf.sharding.spec for leaf in resolved]
        whole, static = eqx.partition((self, state, scope.key), eqx.is_array)
        leaves = [leaf.leaf for leaf in resolved]
        mesh = mesh_like(self.mesh, *jtu.tree_leaves(whole), *leaves)
        # Placed here: a program cannot read arrays on other devices.
        whole = jtu.tree_map(lambda leaf: constrain_to(leaf, mesh, P()), whole)
        leaves = [
            leaf if spec is None else constrain_to(jnp.asarray(leaf), mesh, spec)
            for leaf, spec in zip(leaves, specs, strict=True)
        ]
        x, specs = (jtu.tree_unflatten(structure, each) for each in (leaves, specs))
        return _shard_map_program(
            eqx.combine(whole, static), x, specs, mesh, scope.path
        )


@eqx.filter_jit
def _shard_map_program(
    whole: tuple[ShardMap, eqx.nn.State | None, Key | None],
    x: PyTree,
    specs: PyTree[P | None],
    mesh: Mesh,
    path: str,
) -> tuple[PyTree, eqx.nn.State | None]:
    """Run the stage under `shard_map`; outside `jit` it is a separate program."""
    stage, state, key = whole
    # `shard_map` accepts only arrays, not a Module with other leaves.
    params, static = eqx.partition(stage.stage, eqx.is_array)
    arrays, constants = eqx.partition(x, eqx.is_array)
    axes = [name for spec in jtu.tree_leaves(specs) for name in names_of(spec)]
    others: list[PyTree] = []
    structures: list[PyTreeDef] = []

    def on_device(*args: PyTree) -> tuple[PyTree, eqx.nn.State | None]:
        leaves, structure = jtu.tree_flatten(args)

        def local(*leaves: Array) -> list[Array]:
            params, arrays, state, key = jtu.tree_unflatten(structure, leaves)
            scope = Scope(_local_key(key, mesh, axes), path)
            inner, x = eqx.combine(params, static), eqx.combine(arrays, constants)
            y, state = scope.enter("stage", inner, x, state=state)
            arrays, rest = eqx.partition(numpy_as_jax(y), eqx.is_array)
            out, form = jtu.tree_flatten((arrays, state))
            others[:], structures[:] = [rest], [form]
            return out

        # A jaxpr shows which outputs may differ between the devices.
        jaxpr = trace(local, *leaves)
        out = jtu.tree_unflatten(structures[0], jaxpr.out_avals)
        wanted = _spread(out_specs, out[0]), jtu.tree_map(lambda _: P(), out[1])
        if stage.check_vma:
            split = [names_of(spec) for spec in jtu.tree_leaves(specs)]
            before, after = (len(jtu.tree_leaves(tree)) for tree in (params, args[2:]))
            split = [[]] * before + split + [[]] * after
            _check_equal(jaxpr, split, out, jtu.tree_leaves(wanted), mesh)
        return jtu.tree_unflatten(structures[0], as_function(jaxpr)(*leaves))

    out_specs = jtu.tree_map(
        lambda spec: P() if spec is None else spec,
        stage.out_specs,
        is_leaf=is_spec_leaf,
    )
    # With `check_vma`, JAX sums a gradient that is taken inside over the devices if it
    # is with respect to parameters, or constants, which all devices share.
    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(P(), specs, P(), P()),
        out_specs=(out_specs, P()),
        check_vma=False,
    )
    y, state = mapped(params, arrays, state, key)
    return eqx.combine(y, others[0]), state


def _spread(out_specs: PyTree[P], y: PyTree) -> PyTree[P]:
    """Return the spec of each array of the output."""
    try:
        return jax.tree.broadcast(out_specs, y, is_leaf=is_spec_leaf)
    except ValueError as error:
        raise structure_error(
            "sharding.shard_map",
            f"`out_specs` is not a prefix of the output, {tree_text(y)}.",
            "Give one `PartitionSpec` for the whole output, or a tree of them with its "
            "containers, down to where they end.",
        ) from error


def _check_equal(
    jaxpr: ClosedJaxpr,
    split: Sequence[Sequence[str]],
    out: tuple[PyTree, eqx.nn.State | None],
    specs: Sequence[P],
    mesh: Mesh,
) -> None:
    """Raise if an output may differ along an axis of the mesh that its spec leaves out.

    `split` are the axes of the mesh that split each input of the jaxpr.
    """
    differ: list[list[str]] = [[] for _ in specs]
    for axis in mesh.axis_names:
        marks = depends_on(jaxpr, [axis in names for names in split], axis)
        for names, spec, mark in zip(differ, specs, marks, strict=True):
            names += [f"`{axis}`"] if mark and axis not in names_of(spec) else []
    named = zip(leaves_with_names(out), specs, differ, strict=True)
    lines = [
        f"{_output_name(name)}, with the spec {spec}, along {', '.join(axes)}"
        for (name, _), spec, axes in named
        if axes
    ]
    if lines:
        raise value_error(
            "sharding.shard_map",
            "devices may return different values along an axis of the mesh that the "
            f"spec leaves out:{bullets(lines)}",
            "Combine the values of all devices inside the stage, for instance by "
            "`jax.lax.pmean` (gradients and states, too), or name the axis in "
            "`out_specs`, which joins the parts. If they are the same for a reason "
            "that the program does not show, give `check_vma=False`.",
        )


def _output_name(name: str) -> str:
    which, _, rest = name.partition(".")
    kind = "the state" if which == "1" else "the output"
    return f"`{rest}` of {kind}" if rest and which == "0" else kind


def _local_key(key: Key | None, mesh: Mesh, axes: list[str]) -> Key | None:
    """Return the key of a part; devices with the same part draw the same numbers."""
    split = [name for name in mesh.axis_names if name in axes]
    if key is None or not split:
        return key
    # All devices have the same key: without this, all parts would draw the same
    # numbers.
    return jr.fold_in(key, jax.lax.axis_index(tuple(split)))


def shard_map(
    stage: StageLike,
    mesh: Mesh,
    in_specs: SpecsLike,
    out_specs: SpecsLike,
    *,
    check_vma: bool = True,
) -> ShardMap:
    """Run a stage on every device of a mesh, each on its own part of the input.

    It is `jax.shard_map` for stages: inside, arrays have the sizes of one device's
    part, and collectives such as `jax.lax.psum` take the names of mesh axes. The stage
    may be a Module with any leaves. Every device has a copy of its parameters and its
    state; the updated state must be the same on all devices. Each part draws from its
    own key, folded with the part's position.

    A gradient that is taken inside the stage is that of one device's part, also with
    respect to parameters and closed-over arrays (`jax.shard_map` with its default
    `check_vma=True` would sum it over the devices). For the gradient of a mean over all
    parts, average it by `jax.lax.pmean(gradient, "data")`, also if the loss inside is
    averaged.

    **Arguments:**

    - `stage`: the stage.
    - `mesh`: a `jax.sharding.Mesh`. If its axes are explicit, the stage's parameters
        are placed on it at once; to differentiate, place the input too, and use `jit`
        or `jax.set_mesh`.
    - `in_specs`: the specs of the input, with names of mesh axes, as in
        `eqx_pipe.sharding.shard`. Numbers, strings and None pass through unchanged.
    - `out_specs`: the specs by which the parts of the output are joined, a prefix of
        the output. If a spec leaves out a mesh axis, all devices along that axis must
        return the same values. Numbers and other leaves pass through unchanged.
    - `check_vma`: whether to check that they do, by the operations of the stage: the
        part of the input and `jax.lax.axis_index` differ, and sums over the axis do
        not. Without the check, a wrong `out_specs` silently gives wrong results.
        (Keyword only.)

    **Returns:** a stage that takes and returns whole arrays.

    **Raises:**

    - `ValueError`, when called, if sizes of the input are not divisible (the error
      lists all of them), or if devices may return different values for an output, or
      a state, whose spec leaves out their axis.
    - `StructureError` (a `ValueError`), when called, if specs are not a prefix.
    - `TypeError` if something is not a stage or not a mesh.

    **Laws:** for a stage that treats each row independently, the output equals that of
    the stage on whole arrays, up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> total = lambda x: jax.lax.psum(jnp.sum(x), "data")
        >>> ep.sharding.shard_map(total, mesh, P("data"), P())(jnp.ones(16)).item()
        16.0
    """
    check_mesh("sharding.shard_map", mesh)
    child = as_stage("sharding.shard_map", "stage", stage)
    if AxisType.Explicit in mesh.axis_types:
        # With explicit axes, gradients require parameters whose types have the mesh.
        child = shard(child, mesh, None)
    return ShardMap(child, mesh, in_specs, out_specs, check_vma)
