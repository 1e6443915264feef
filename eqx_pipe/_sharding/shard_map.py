"""A stage that runs on every device's own part: `shard_map` for modules."""

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

    # Not static: specs are leaves of their own, and a dict of them has no hash.
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
        # Placed here: inside of the program nothing can come from other devices.
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
    """Run the stage under `shard_map`, as a program of its own outside `jit`."""
    stage, state, key = whole
    # `shard_map` takes arrays alone, and refuses a Module that holds anything else.
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
    """Return the key of a part: devices that hold the same part draw the same."""
    split = [name for name in mesh.axis_names if name in axes]
    if key is None or not split:
        return key
    # All devices have the same key: with it as it is all parts would draw the same
    # noise.
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
    part, and collectives such as `jax.lax.psum` know the mesh axes by name. The
    stage may be a Module with any leaves; every device has its parameters whole, and
    its state, which must come out the same on all. Each part draws from a key of its
    own, the key folded with the part's position.

    **Arguments:**

    - `stage`: the stage.
    - `mesh`: a `jax.sharding.Mesh`. If its axes are explicit, the stage's parameters
        are placed on it at once; for gradients place the input, too, and take them
        under `jit` or `jax.set_mesh`.
    - `in_specs`: how the input is split, by names of mesh axes, as in
        `eqx_pipe.sharding.shard`. Numbers, strings and None pass untouched.
    - `out_specs`: how the parts of the output are put together, a prefix of it. An axis
        that is not named says that all devices along it give the same. Numbers and
        other leaves pass as they are.
    - `check_vma`: whether JAX checks that this is so. It refuses loops that begin with
        a constant, and `equinox.error_if`; switched off, a wrong `out_specs` gives
        wrong results without a word. (Keyword only.)

    **Returns:** a stage of whole arrays.

    **Raises:**

    - `ValueError`, when called, if sizes of the input do not divide (names all of
      them), and as `jax.shard_map` raises it for the output.
    - `StructureError` (a `ValueError`), when called, if specs are no prefix.
    - `TypeError` if something is not a stage or not a mesh.

    **Laws:** a stage that treats each row alone gives what it gives on the whole, up
    to rounding.

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
        # Where types name a mesh, those of the parameters must, too, for gradients.
        child = shard(child, mesh, None)
    return ShardMap(child, mesh, in_specs, out_specs, check_vma)
