"""Place the arrays of a pytree on devices, and show their shardings."""

import itertools as it
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool

from .._check import check_callable, check_unmasked
from .._errors import type_error, value_error
from .._keys import check_key
from .._mesh_context import check_mesh, is_explicit
from .._tree import fill, is_key_array, leaf_text, leaves_with_names
from .._types import Key, PyTree
from .mesh import (
    Placeable,
    Tree,
    constrain_to,
    is_global,
    is_placeable,
    mesh_like,
    num_shards,
    numpy_as_jax,
    with_types,
)
from .specs import (
    LogicalAxis,
    RulesLike,
    SpecsLike,
    current_rules,
    path_leaves,
    resolve,
)


def shard(
    tree: Tree, mesh: Mesh, specs: SpecsLike, rules: RulesLike | None = None
) -> Tree:
    """Place the arrays of a pytree on a mesh, each split by its spec.

    Values do not change. Arrays of JAX and NumPy are placed, wherever they are now;
    everything else (numbers, strings, functions, None) passes through unchanged. With
    several processes, host arrays and arrays of a single process are that process's
    part of a global array. All parts have the same shape; if a spec does not split over
    processes, all processes must pass the same array.

    Inside `jit` this is a sharding constraint.

    **Arguments:**

    - `tree`: a pytree, such as a model.
    - `mesh`: a `jax.sharding.Mesh`.
    - `specs`: a `PartitionSpec` for each array, `None` meaning a copy on every device.
        An array without axes is never split. One of:
        - a prefix of the tree: a spec for a whole subtree is truncated to the rank of
            each array in it. A Module is always read as a prefix.
        - a mapping from patterns of paths to specs, if it is not a prefix: `{"head":
            P("model"), "blocks.*.mlp.weight": P(None, "model")}`. Paths and patterns
            are those of `eqx_pipe.trainable`; arrays that no pattern matches are copied
            to every device. The spec of a pattern that matches a path above an array is
            truncated to the array's rank. Stages stacked in one array (`repeat`) must
            get the same spec, which begins with the axis of the stages.

        For specs that depend on the arrays, map over the tree: `jax.tree.map(f,
        equinox.filter(tree, equinox.is_array))`.
    - `rules`: `AxisRules`, or a mapping or pairs for it; the specs then hold logical
        names. Without rules they hold names of mesh axes.

    **Returns:** the tree with placed arrays.

    **Shapes:** the size of an axis must be divisible by the number of devices that
    split it.

    **Raises:**

    - `ValueError` if a spec does not fit its array: one error for all leaves, with
      path, size, mesh axis, and the nearest sizes that fit; if a pattern matches no
      array (the error names the nearest path), or two patterns disagree.
    - `StructureError` (a `ValueError`) if `specs` is not a prefix of `tree`.
    - `TypeError` if a spec has another type, or `mesh` is not a mesh.

    **Laws:** placing an array never changes its values; programs return the same
    outputs for placed arrays, up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> batch = {"x": jnp.ones((16, 3)), "y": jnp.ones(16), "name": "train"}
        >>> placed = ep.sharding.shard(batch, mesh, P("data"))
        >>> placed["x"].sharding.spec, placed["name"]
        (P('data',), 'train')
    """
    return shard_as("sharding.shard", tree, mesh, specs, rules)


def shard_as(
    function: str,
    tree: Tree,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
) -> Tree:
    """`shard` as a part of `function`, which errors name."""
    local = isinstance(mesh, Mesh) and mesh.is_multi_process
    resolved, structure = resolve(function, tree, mesh, specs, rules, local=local)
    leaves, shardings = [], []
    for name, leaf, sharding in resolved:
        if isinstance(leaf, jax.ShapeDtypeStruct):
            raise type_error(
                function,
                f"{f'`{name}`' if name else 'the tree'} is a `jax.ShapeDtypeStruct`, "
                "which has no values.",
                "Give arrays; `eqx_pipe.sharding.init_sharded` makes a model in its "
                "shards.",
            )
        if sharding is not None and isinstance(leaf, Tracer):
            leaf = constrain_to(leaf, mesh_like(mesh, leaf), sharding.spec)
            sharding = None
        elif sharding is not None and local and not is_global(leaf):
            # This is the process's part: `device_put` would treat it as the whole
            # array.
            data = leaf if is_key_array(leaf) else np.asarray(leaf)
            leaf = jax.make_array_from_process_local_data(sharding, data)
            sharding = None
        leaves.append(leaf)
        shardings.append(sharding)
    # All at once, so that transfers overlap.
    moves = [sharding is not None for sharding in shardings]
    both = (list(it.compress(every, moves)) for every in (leaves, shardings))
    placed = fill(leaves, moves, jax.device_put(*both))
    return jtu.tree_unflatten(structure, placed)


def init_sharded(
    init: Callable[[Key], Tree],
    key: Key,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
) -> Tree:
    """Create the model `init(key)` directly in its shards.

    No device holds a whole array that is split, as it would if `shard` placed a
    finished model: each device draws only its own part. (Some initializers, such as
    orthogonal ones, need the whole array on every device while they compute.)

    **Arguments:**

    - `init`: a function of one key that returns a model, or any pytree. It is traced.
    - `key`: a PRNG key.
    - `mesh`, `specs`, `rules`: as in `shard`.

    **Returns:** the model, placed. Inside `jit` or `vmap` this is a sharding
    constraint, and devices may hold whole arrays; outside, `init` may itself be a
    `vmap` over split keys.

    **Raises:**

    - `ValueError` if specs and sizes do not fit, as in `shard`.
    - `TypeError` if `init` is not a function, or `key` is not a PRNG key.

    **Laws:** the values are those of `init(key)`, up to rounding.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("model",))
        >>> make = lambda key: eqx.nn.Linear(16, 16, key=key)
        >>> linear = ep.sharding.init_sharded(make, jax.random.key(0), mesh, P("model"))
        >>> linear.weight.sharding.spec
        P('model',)
    """
    cure = "Give a function from a key to the model: `lambda key: Model(key=key)`."
    check_callable("sharding.init_sharded", "init", init, cure)
    check_key("sharding.init_sharded", key, required=True)
    if isinstance(key, Tracer):
        return shard_as("sharding.init_sharded", init(key), mesh, specs, rules)
    check_mesh("sharding.init_sharded", mesh)
    auto = with_types(mesh, AxisType.Auto)

    def make(key: Key) -> Tree:
        model = numpy_as_jax(init(key))
        return shard_as("sharding.init_sharded", model, auto, specs, rules)

    # Placed again with the kind of axes of the user's mesh, which moves no data.
    model = eqx.filter_jit(make)(key)
    return shard_as("sharding.init_sharded", model, mesh, specs, rules)


def pad_to(
    tree: Tree, mesh: Mesh, specs: SpecsLike, rules: RulesLike | None = None
) -> tuple[Tree, PyTree[Bool[Array | np.ndarray, "..."] | None]]:
    """Pad arrays so that `shard` can split them, and return a mask of the real entries.

    Each axis grows at its end to the next divisible size. The new entries are zero (for
    PRNG keys, copies of the last key). Nothing is moved: NumPy arrays stay on the host.

    **Arguments:** those of `shard`.

    **Returns:** the padded tree, and a mask: for each array a Bool array of the padded
    shape, true where the entries are real, and `None` for other leaves. The mean of
    the real entries is `jnp.mean(padded, where=mask)`.

    **Shapes:** an array `(*a,)` becomes `(*b,)` with each `b` the smallest multiple,
    at least `a`, of the number of parts; the mask is `(*b,)`.

    **Raises:** as `shard`, except for sizes that do not divide.

    **Laws:** `padded[:a]` is the array; nothing changes if all sizes fit.

    !!! example

        >>> import eqx_pipe as ep, jax, numpy as np
        >>> from jax.sharding import PartitionSpec as P
        >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
        >>> n = len(jax.devices())
        >>> padded, mask = ep.sharding.pad_to(np.ones((n + 1, 3)), mesh, P("data"))
        >>> padded.shape == (2 * n, 3), int(mask[:, 0].sum()) == n + 1
        (True, True)
    """
    resolved, structure = resolve(
        "sharding.pad_to", tree, mesh, specs, rules, divide=False
    )
    leaves, masks = [], []
    for name, leaf, sharding in resolved:
        mask = None
        if sharding is not None:
            check_unmasked("sharding.pad_to", name or "tree", leaf)
            xp = np if isinstance(leaf, np.ndarray | np.generic) else jnp
            local = mesh.is_multi_process and not is_global(leaf)
            over = mesh.local_mesh if local else mesh
            widths = _widths(leaf.shape, over, sharding.spec)
            mask = _pad(xp.ones(leaf.shape, bool), widths)
            leaf = _pad(leaf, widths)
        leaves.append(leaf)
        masks.append(mask)
    padded = jtu.tree_unflatten(structure, leaves)
    return padded, jtu.tree_unflatten(structure, masks)


def _widths(shape: tuple[int, ...], mesh: Mesh, spec: P) -> list[tuple[int, int]]:
    entries = list(spec) + [None] * (len(shape) - len(spec))
    parts = [num_shards(mesh, entry) for entry in entries]
    return [(0, -size % n) for size, n in zip(shape, parts, strict=True)]


def _pad(leaf: Any, widths: list[tuple[int, int]]) -> Any:
    if not any(after for _, after in widths):
        return leaf
    if is_key_array(leaf):  # zeros are not a key
        data = jnp.pad(jr.key_data(leaf), [*widths, (0, 0)], mode="edge")
        return jr.wrap_key_data(data, impl=jr.key_impl(leaf))
    return (jnp if isinstance(leaf, jax.Array) else np).pad(leaf, widths)


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Constrain the sharding of an array inside a program by logical axis names.

    It takes effect under `with rules.on(mesh):`, and is the identity elsewhere, so a
    model with constraints also runs without rules. Use it inside `jit`; outside, it
    moves the array. It works under `grad` and `vmap` (the compiler chooses the sharding
    of the mapped axis), and does nothing inside a `shard_map`, where every device
    already has its part.

    **Arguments:**

    - `x`: an array, or a pytree, in which all arrays get the same constraint, and
        numbers and other leaves pass through unchanged.
    - `logical`: one logical name per axis of the arrays, or `None` for an axis that is
        replicated.

    **Returns:** `x`, with the constraint.

    **Raises:** `ValueError` if the names do not fit the rules or the array, or a size
    is not divisible by the mesh axes that split it; the error names the leaf, sizes and
    axes.

    **Laws:** values change at most by rounding.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> ep.sharding.constrain(jnp.ones(3), "batch").shape
        (3,)
    """
    current = current_rules()
    in_shard_map = AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types
    if current is None or in_shard_map:
        return x
    rules, mesh = current
    arrays, rest = eqx.partition(x, is_placeable)
    for name, leaf in leaves_with_names(arrays):
        if len(logical) != leaf.ndim:
            path = f"`{name}`: " if name else ""
            raise value_error(
                "sharding.constrain",
                f"{path}{leaf_text(leaf)} has {leaf.ndim} axes, but {len(logical)} "
                "names are given.",
                "Give one name per axis, and None for an axis that is replicated.",
            )
    spec = P(*logical)
    resolved, structure = resolve("sharding.constrain", arrays, mesh, spec, rules)
    placed = [
        constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), sharding.spec)
        for _, leaf, sharding in resolved
        if sharding is not None
    ]
    return eqx.combine(jtu.tree_unflatten(structure, placed), rest)


_HEAD = ("path", "shape", "dtype", "spec", "devices", "bytes per device")


class LeafInfo(NamedTuple):
    """The sharding of one array.

    `spec` is its `PartitionSpec`; `None` if the array has none, as on the host, on a
    single device, or while tracing. `bytes_per_device` is the size of its largest
    shard, in bytes.
    """

    path: str
    shape: tuple[int, ...]
    dtype: Any  # `numpy.dtype`, or JAX's own for keys, which has no public class
    spec: P | None
    bytes_per_device: int
    devices: int

    def cells(self) -> tuple[str, ...]:
        """Return the row of the table as text."""
        spec = "-" if self.spec is None else str(self.spec)
        shape = f"({', '.join(map(str, self.shape))})"
        numbers = str(self.devices), f"{self.bytes_per_device:,}"
        path = self.path or "."
        return path, shape, str(self.dtype), spec, *numbers


class ShardingInfo(dict[str, LeafInfo]):
    """The result of `info`: a dict from path to `LeafInfo`, shown as a table."""

    @property
    def bytes_per_device(self) -> int:
        """An upper bound on the bytes that all arrays take on one device."""
        return sum(row.bytes_per_device for row in self.values())

    def __repr__(self) -> str:
        total = ("total", "", "", "", "", f"{self.bytes_per_device:,}")
        lines = [_HEAD, *(row.cells() for row in self.values()), total]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        # Text is aligned left, and the numbers of the last two columns right.
        sides = ["<"] * 4 + [">"] * 2

        def text(line: tuple[str, ...]) -> str:
            cells = zip(line, sides, widths, strict=True)
            return "  ".join(f"{c:{side}{width}}" for c, side, width in cells).rstrip()

        return "\n".join(map(text, lines))


def info(tree: PyTree) -> ShardingInfo:
    """Return the sharding, and the size on a device, of each array of a pytree.

    **Arguments:**

    - `tree`: a pytree of arrays, of JAX or NumPy, or `jax.ShapeDtypeStruct`s; other
        leaves are skipped.

    **Returns:** a dict from each array's path to its `path`, `shape`, `dtype`, `spec`,
    `bytes_per_device` and number of `devices` (0 on the host). It prints as a table.
    Paths are those of `eqx_pipe.trainable`, with `*` for the positions of stages that
    are stacked in one array: `blocks.*.mlp.weight`.

    **Units:** `bytes_per_device` is in bytes.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> from jax.sharding import AxisType, Mesh, PartitionSpec as P
        >>> mesh = Mesh(jax.devices()[:1], ("data",))
        >>> ep.sharding.info(ep.sharding.shard({"x": jnp.ones((16, 3))}, mesh,
        ...     P("data")))
        path   shape    dtype    spec        devices  bytes per device
        x      (16, 3)  float32  P('data',)        1               192
        total                                                      192
    """
    leaves = [at for at in path_leaves(tree)[0] if is_placeable(at.leaf)]
    return ShardingInfo({at.name: _row(at.name, at.leaf) for at in leaves})


def _row(name: str, leaf: Placeable) -> LeafInfo:
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, Tracer):
        # Its type has explicit axes; the compiler decides on automatic ones later.
        sharding = jax.typeof(leaf).sharding
        sharding = sharding if is_explicit(sharding.mesh) else None
    spec = sharding.spec if isinstance(sharding, NamedSharding) else None
    part = leaf.shape if sharding is None else sharding.shard_shape(leaf.shape)
    size = math.prod(part) * leaf.dtype.itemsize
    devices = 0
    if isinstance(sharding, NamedSharding):
        devices = sharding.mesh.size  # also for an abstract mesh
    elif sharding is not None:
        devices = sharding.num_devices
    return LeafInfo(name, tuple(leaf.shape), leaf.dtype, spec, size, devices)
