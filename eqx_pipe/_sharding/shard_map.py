"""Run a stage on each device's part of the input: `shard_map` for modules."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

from .._mesh_context import check_mesh
from .._stage import Scope, as_stage, enter
from .._types import Key, PyTree, StageLike
from .mesh import constrain_to, mesh_like, names_of, numpy_as_jax
from .place import shard
from .specs import SpecsLike, is_spec_leaf, resolve
from .submesh import OnMesh


class ShardMap(OnMesh):
    """A stage under `shard_map`; see `shard_map`."""

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
        return _program(eqx.combine(whole, static), x, specs, mesh, scope.path)


@eqx.filter_jit
def _program(
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

    def on_device(
        params: PyTree, arrays: PyTree, state: eqx.nn.State | None, key: Key | None
    ) -> tuple[PyTree, eqx.nn.State | None]:
        scope = Scope(_local_key(key, mesh, axes), path)
        inner, x = eqx.combine(params, static), eqx.combine(arrays, constants)
        y, state = enter(scope, "stage", inner, x, state=state)
        arrays, rest = eqx.partition(numpy_as_jax(y), eqx.is_array)
        others[:] = [rest]
        return arrays, state

    out_specs = jtu.tree_map(
        lambda spec: P() if spec is None else spec,
        stage.out_specs,
        is_leaf=is_spec_leaf,
    )
    mapped = jax.shard_map(
        on_device,
        mesh=mesh,
        in_specs=(P(), specs, P(), P()),
        out_specs=(out_specs, P()),
        check_vma=stage.check_vma,
    )
    y, state = mapped(params, arrays, state, key)
    return eqx.combine(y, others[0]), state


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
    - `check_vma`: whether JAX checks that they do. The check rejects loops whose carry
        begins as a constant, and `equinox.error_if`; without the check, a wrong
        `out_specs` silently gives wrong results. (Keyword only.)

    **Returns:** a stage that takes and returns whole arrays.

    **Raises:**

    - `ValueError`, when called, if sizes of the input are not divisible (the error
      lists all of them), and from `jax.shard_map` for the output.
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
