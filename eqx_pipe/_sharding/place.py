"""Place the arrays of a pytree on devices.

`resolve` finds the spec of each array, by a prefix, by patterns of paths, or by logical
names and rules.

JAX has automatic axes, for which the compiler propagates shardings, and explicit axes,
for which shardings are part of an array's type. Both work: the program depends on the
types of the arrays, not on the kind of the user's mesh.
"""

import contextlib
import dataclasses
import functools as ft
import inspect
import itertools as it
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array

from .._check import check_callable, check_is
from .._compiled import is_there
from .._errors import (
    bullets,
    describe_value,
    nearest,
    structure_error,
    type_error,
    value_error,
)
from .._keys import check_key
from .._mesh_context import IN_LANE, RULES, check_mesh, is_staged
from .._stage import NamedLeaf, check_matched, matches, named_leaves
from .._tree import fill, is_key_array, leaf_text, leaves_with_names, numpy_as_jax
from .._types import Key, PyTree, PyTreeDef

MeshAxes: TypeAlias = str | tuple[str, ...] | None
"""The mesh axis, or axes, over which an axis of an array is split; or None."""

Placeable: TypeAlias = jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct
"""An array or its struct; Python numbers pass through all functions."""

Tree = TypeVar("Tree")
"""A pytree that is returned with the same structure and other shardings."""


def wraps_function(fun: Callable[..., Any]) -> Callable[[Any], Any]:
    """Decorate a function like `functools.wraps(fun)`, but never with a Module.

    For a Module such as `eqx.filter_value_and_grad(fun)` it uses the function inside:
    Equinox warns about functions that hold the arrays of a Module as an attribute.
    """
    return ft.wraps(inspect.unwrap(fun))


def is_placeable(leaf: object) -> TypeGuard[Placeable]:
    """Return whether a leaf is an array, of JAX or NumPy, that devices can hold."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "OSUMm"
    return isinstance(leaf, jax.Array | jax.ShapeDtypeStruct)


def is_global(leaf: object) -> bool:
    """Return whether an array is already on the devices of several processes."""
    if isinstance(leaf, Tracer):  # inside `jit` an array is whole
        return True
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def names_of(spec: Iterable[object]) -> list[str]:
    """Return the mesh axes in a spec, in order, with repetitions."""
    # An entry may also be None, or `PartitionSpec.UNCONSTRAINED`.
    entries = ([entry] if isinstance(entry, str) else entry for entry in spec)
    several = (entry for entry in entries if isinstance(entry, list | tuple))
    return [name for entry in several for name in entry]


def num_shards(mesh: Mesh | AbstractMesh, entry: object) -> int:
    """Return the number of parts into which an entry of a spec splits an axis."""
    return math.prod(mesh.shape[name] for name in names_of([entry]))


def fitting_sizes(size: int, parts: int) -> str:
    """Return the multiples of `parts` nearest to a size, for a message."""
    below, above = size // parts * parts, -(-max(size, 1) // parts) * parts
    return f"{below} or {above}" if below else f"{above}"


def with_types(mesh: Mesh, kind: AxisType) -> Mesh:
    """Return a mesh of the same devices and names, with axes of one kind."""
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(kind,) * mesh.devices.ndim)


def mesh_like(mesh: Mesh, *leaves: object) -> Mesh:
    """Return `mesh` with the kind of axes of these arrays and of the context.

    Explicit axes are part of the arrays' types, and cannot be mixed with others.
    """
    meshes = [jax.sharding.get_abstract_mesh()]
    meshes += [_mesh_of(leaf) for leaf in leaves if isinstance(leaf, jax.Array)]
    explicit = [m for m in meshes if AxisType.Explicit in m.axis_types]
    for other in explicit:
        if other.axis_names == mesh.axis_names:  # may have both kinds
            return Mesh(mesh.devices, mesh.axis_names, axis_types=other.axis_types)
    return with_types(mesh, AxisType.Explicit if explicit else AxisType.Auto)


def _mesh_of(x: Array) -> AbstractMesh:
    """Return the mesh in the type of `x`; it may be empty."""
    return jax.typeof(x).sharding.mesh


@ft.partial(jax.jit, static_argnums=1)
def _constrained(x: Array, sharding: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def constrain_to(x: Array, mesh: Mesh, spec: P) -> Array:
    """Constrain `x` to a spec while tracing; otherwise move it.

    The mesh must have the same kind of axes as the arrays; see `mesh_like`.
    """
    sharding = NamedSharding(mesh, spec)
    explicit = AxisType.Explicit in mesh.axis_types
    if not isinstance(x, Tracer):
        return jax.device_put(x, sharding)
    if not (explicit or is_staged()):
        # `device_put` would apply the spec's first entry to the axis of an outer
        # `vmap`; it is used only to copy whole arrays to the mesh.
        try:
            return _constrained(x, sharding)
        except ValueError:  # it is on other devices
            return _constrained(jax.device_put(x, NamedSharding(mesh, P())), sharding)
    if explicit:
        if not names_of(spec) and not _mesh_of(x).axis_names:
            # It is already replicated. A `reshard` would change its type, and then its
            # cotangent would not have the type of the argument.
            return x
        x = jax.sharding.reshard(x, _part(sharding, AxisType.Explicit))
        if AxisType.Auto not in mesh.axis_types:
            return x
        sharding = _part(sharding, AxisType.Auto)
    return jax.lax.with_sharding_constraint(x, sharding)


def _part(sharding: NamedSharding, kind: AxisType) -> NamedSharding:
    """Return the part of a sharding on axes of one kind, which one function applies."""
    mesh = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))

    def one(entry: MeshAxes) -> MeshAxes:
        names = tuple(name for name in names_of([entry]) if kinds[name] == kind)
        return names or None

    return NamedSharding(mesh, P(*map(one, sharding.spec)))


LogicalAxis: TypeAlias = str | tuple[str, ...] | None
"""The logical name of an array's axis, the names of several merged axes, or None."""


class AxisRules(eqx.Module):
    """Rules that map logical axes of arrays to the mesh axes that split them.

    Models and data name the axes of their arrays by meaning, such as `"batch"` or
    `"hidden"`; the rules map these names to the axes of a mesh in one place. They are
    pairs of a logical name and a mesh axis, tried in order for each array. A pair is
    used if the array has that logical axis, no earlier pair has assigned it, and the
    mesh axis is still free in this array; otherwise it is skipped. So earlier pairs
    have priority, whatever the order of the array's axes.

    **Arguments:**

    - `pairs`: a mapping from logical names to mesh axes, or pairs of them, or another
        `AxisRules`. A mesh axis is a name, a tuple of names (split over all of them),
        or `None` (replicated).

    **Raises:** `TypeError` if a pair is not a logical name and a mesh axis.

    **Laws:** in one array no mesh axis is used twice; the spec of a permuted array is
    the permuted spec.

    !!! example

        >>> import eqx_pipe as ep
        >>> rules = ep.sharding.AxisRules(
        ...     [("batch", "data"), ("hidden", "model"), ("input", "model"),
        ...      ("input", None)])
        >>> rules.spec("hidden", "input"), rules.spec("batch", "input")
        (P('model', None), P('data', 'model'))
    """

    pairs: tuple[tuple[str, MeshAxes], ...] = eqx.field(static=True)

    def __init__(self, pairs: "RulesLike"):
        self.pairs = _as_pairs(pairs)

    def spec(self, *logical: LogicalAxis) -> P:
        """Return the `PartitionSpec` of an array whose axes have these logical names.

        **Arguments:**

        - `logical`: one logical name per axis of the array, or `None` for an axis that
            is replicated, or a tuple of names for an axis that merges several.

        **Raises:** `ValueError` if there is no pair for a name, if other axes of the
        array have taken all mesh axes for it, also another axis of the same name.
        """
        spec, problems = self._resolved(logical)
        if problems:
            wrong = problems[0] if len(problems) == 1 else bullets(problems)
            cure = "Give one name for each axis of the array, or `None` to replicate "
            cure += "it."
            raise value_error("sharding.AxisRules", wrong, cure)
        return spec

    @contextlib.contextmanager
    def on(self, mesh: Mesh) -> Iterator["AxisRules"]:
        """Use these rules for every `constrain` that is called in the `with` block.

        A function under `jit` is traced again under other rules. Blocks nest; the
        innermost one applies.

        **Arguments:**

        - `mesh`: a `jax.sharding.Mesh`.

        **Returns:** a context manager that returns the rules.

        **Raises:** `TypeError` if `mesh` is not a mesh.

        !!! example

            >>> import eqx_pipe as ep, jax, jax.numpy as jnp
            >>> mesh = jax.make_mesh((len(jax.devices()),), ("data",))
            >>> f = jax.jit(lambda x: ep.sharding.constrain(2 * x, "batch", None))
            >>> with ep.sharding.AxisRules({"batch": "data"}).on(mesh):
            ...     y = f(jnp.ones((16, 3)))
            >>> y.sharding.spec[0]
            'data'
        """
        check_mesh("sharding.AxisRules.on", mesh)
        with RULES((self, mesh)):
            yield self

    def _resolved(self, logical: tuple[LogicalAxis, ...]) -> tuple[P, list[str]]:
        """Return the spec and a list of its problems, empty if there are none."""
        wrong = [entry for entry in logical if not _is_axis(entry)]
        if wrong:
            texts = ", ".join(map(describe_value, wrong))
            return P(), [f"these axes have no logical names: {texts}."]
        names = names_of(logical)
        assigned, owner = self._assign(names)
        problems = []
        for name in dict.fromkeys(names):
            axes = names_of(axes for n, axes in self.pairs if n == name)
            taken = [f"`{a}` is taken by `{owner[a]}`" for a in axes if a in owner]
            if name not in assigned or (names.count(name) > 1 and assigned[name]):
                rules = dict(self.pairs)
                why = f"{'; '.join(taken)}." if taken else nearest(name, rules)
                problems.append(
                    f"no rule is left for `{name}`. {why} Give the axis "
                    f"another name, or add the pair `({name!r}, None)` to replicate it."
                )
        if problems:
            return P(), problems
        return P(*(_entry(entry, assigned) for entry in logical)), []

    def _assign(
        self, names: list[str]
    ) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
        """Return the axes of each logical name, and the owner of each mesh axis."""
        assigned: dict[str, tuple[str, ...]] = {}
        owner: dict[str, str] = {}
        # In the order of the pairs, not of the array's axes, as in Flax.
        for name, axes in self.pairs:
            wanted = tuple(names_of([axes]))
            taken = any(axis in owner for axis in wanted)
            if name in names and name not in assigned and not taken:
                assigned[name] = wanted
                owner.update(dict.fromkeys(wanted, name))
        return assigned, owner


def current_rules() -> tuple[AxisRules, Mesh] | None:
    """Return the rules and mesh of the enclosing `AxisRules.on`, or None."""
    return RULES.value


RulesLike: TypeAlias = (
    AxisRules
    | Mapping[str, MeshAxes | list[str]]
    | Iterable[Sequence[str | Sequence[str] | None]]
)
"""`AxisRules`, or a mapping or pairs of logical names and mesh axes."""


def as_rules(rules: RulesLike | None) -> AxisRules | None:
    """Return rules as `AxisRules`; mappings and pairs are converted."""
    return rules if rules is None or isinstance(rules, AxisRules) else AxisRules(rules)


def _as_pairs(rules: RulesLike) -> tuple[tuple[str, MeshAxes], ...]:
    if isinstance(rules, AxisRules):
        return rules.pairs
    items = rules.items() if isinstance(rules, Mapping) else rules
    cure = "Give a mapping from logical names to mesh axes, or pairs: "
    cure += '`[("batch", "data"), ("hidden", None)]`.'
    check_is("sharding.AxisRules", "pairs", items, Iterable, cure)
    pairs = []
    for i, pair in enumerate(items):
        good = isinstance(pair, tuple | list) and len(pair) == 2
        axes = pair[1] if good else None
        axes = tuple(axes) if isinstance(axes, list) else axes
        if not good or not isinstance(pair[0], str) or not _is_axis(axes):
            wrong = f"`pairs[{i}]` is {describe_value(pair)}."
            cure = "A pair is a logical name and a mesh axis: its name, a tuple of "
            cure += "names, or None for no splitting."
            raise type_error("sharding.AxisRules", wrong, cure)
        pairs.append((pair[0], axes))
    return tuple(pairs)


def _is_axis(entry: object) -> bool:
    if isinstance(entry, tuple):
        return all(isinstance(name, str) for name in entry)
    return entry is None or isinstance(entry, str)


def _entry(entry: LogicalAxis, assigned: dict[str, tuple[str, ...]]) -> MeshAxes:
    axes = tuple(axis for name in names_of([entry]) for axis in assigned[name])
    if len(axes) < 2:
        return axes[0] if axes else None
    return axes


SpecsLike: TypeAlias = PyTree[P | None] | Mapping[str, P | None]
"""A prefix tree of specs, or a mapping from patterns of paths to specs."""


class LeafSharding(NamedTuple):
    """A leaf with its intended sharding, which is None if it is not an array."""

    name: str
    leaf: Any  # of a user's tree: anything
    sharding: NamedSharding | None


def resolve(
    function: str,
    tree: PyTree,
    mesh: Mesh,
    specs: SpecsLike,
    rules: RulesLike | None = None,
    *,
    local: bool = False,
) -> tuple[list[LeafSharding], PyTreeDef]:
    """Return every leaf of `tree` with its sharding, and the structure of `tree`.

    One error lists every misfit. With `local` the arrays of one process are its part of
    a global array.
    """
    check_mesh(function, mesh)
    axis_rules = as_rules(rules)
    leaves = named_leaves(tree)
    resolved, problems, uneven = [], [], False
    for at, spec in zip(leaves, _specs_of(function, tree, leaves, specs), strict=True):
        sharding, wrong = None, []
        if is_placeable(at.value):
            spec = spec if at.value.ndim else P()  # an array without axes is not split
            if axis_rules is not None:  # the names are logical
                spec, wrong = axis_rules._resolved(tuple(spec))
            wrong = wrong or _wrong_axes(at.value, spec, mesh)
            if not wrong:
                wrong = _uneven_sizes(at.value, spec, mesh, local=local)
                uneven = uneven or bool(wrong)
            sharding = None if wrong else NamedSharding(mesh, spec)
        problems += [f"`{at.name}`: {line}" if at.name else line for line in wrong]
        resolved.append(LeafSharding(at.name, at.value, sharding))
    if problems:
        names = "specs" if axis_rules is None else "logical names or the rules"
        pad = " or the sizes: `jnp.pad` pads an array to a size that fits."
        wrong = f"these specs do not fit the arrays and the mesh {dict(mesh.shape)}:"
        cure = f"Change the {names}" + (pad if uneven else ".")
        raise value_error(function, wrong + bullets(problems), cure)
    return resolved, jtu.tree_structure(tree)


def _wrong_axes(leaf: Placeable, spec: P, mesh: Mesh) -> list[str]:
    """Return the reasons why a spec does not fit an array and a mesh, one per line."""
    names = names_of(spec)
    problems = []
    for name in dict.fromkeys(names):
        if name not in mesh.shape:
            hint = nearest(name, mesh.axis_names)
            problems.append(f"the mesh has no axis `{name}`. {hint}")
        if names.count(name) > 1:
            problems.append(
                f"the mesh axis `{name}` stands twice in {spec}; an axis of the mesh "
                "can split one axis of an array."
            )
    if len(spec) > leaf.ndim:
        text = leaf_text(leaf)
        line = f"{spec} has {len(spec)} entries, but {text} has {leaf.ndim} axes."
        problems.append(line)
    return problems


def _uneven_sizes(
    leaf: Placeable, spec: P, mesh: Mesh, *, local: bool = False
) -> list[str]:
    """Return a line for each axis with an indivisible size, with sizes that fit."""
    lines, where = [], ""
    if local and not is_global(leaf):
        mesh, where = mesh.local_mesh, " in this process"
    # Not strict: axes after the last entry are whole.
    for axis, (size, entry) in enumerate(zip(leaf.shape, spec, strict=False)):
        parts = num_shards(mesh, entry)
        if size % parts:
            over = " x ".join(f"`{name}`" for name in names_of([entry]))
            lines.append(
                f"axis {axis} has size {size}, which does not divide over the mesh "
                f"axis {over} of size {parts}{where}; the nearest that fits: "
                f"{fitting_sizes(size, parts)}."
            )
    return lines


def is_spec_leaf(spec: object) -> TypeGuard[P | None]:
    """Return whether a node in a tree of specs is a leaf: a spec, or None."""
    return spec is None or isinstance(spec, P)


def _specs_of(
    function: str, tree: PyTree, leaves: Sequence[NamedLeaf], specs: SpecsLike
) -> list[P]:
    """Return the spec of each leaf; it is P() for a leaf that is not an array."""
    # Wrapped, because a spec may be None.
    entries = jtu.tree_map(_Entry, specs, is_leaf=is_spec_leaf)
    try:
        whole = jax.tree.broadcast(entries, tree)
    except ValueError as error:
        if _are_patterns(specs):
            return _by_pattern(function, leaves, specs)
        why = str(error).replace("broadcast_prefix prefix_tree", "specs")
        why = " ".join(why.split()).rstrip(".")
        wrong = f"`specs` is not a prefix of the tree: {why}."
        cure = "One `PartitionSpec` (or None) stands for all arrays below it; a "
        cure += 'mapping from patterns of paths, `{"head.weight": P("model")}`, fits '
        cure += "every tree."
        raise structure_error(function, wrong, cure) from error
    exact = {path for path, _ in jtu.tree_flatten_with_path(entries)[0]}
    chosen = []
    both = zip(leaves, jtu.tree_flatten_with_path(whole)[0], strict=True)
    for at, (path, entry) in both:
        spec = P()
        if is_placeable(at.value):
            argument = f"specs` for `{at.name}" if at.name else "specs"
            spec = _as_spec(function, argument, entry.spec)
            spec = spec if path in exact else _cut(spec, at.value)
        chosen.append(spec)
    return chosen


@dataclasses.dataclass
class _Entry:
    """A leaf of a tree of specs."""

    spec: object


def _cut(spec: P, leaf: Placeable) -> P:
    """Truncate a spec shared by several arrays: a bias has fewer axes than a weight."""
    return P(*tuple(spec)[: leaf.ndim])


def _are_patterns(specs: PyTree) -> TypeGuard[Mapping[str, P | None]]:
    return isinstance(specs, Mapping) and all(
        isinstance(key, str) and is_spec_leaf(spec) for key, spec in specs.items()
    )


def _by_pattern(
    function: str, leaves: Sequence[NamedLeaf], specs: Mapping[str, P | None]
) -> list[P]:
    """Return the spec of each leaf: that of a pattern that matches it or a parent."""
    arrays = [at for at in leaves if is_placeable(at.value)]
    paths = [path for at in arrays for path in at.paths.flat]
    check_matched(function, specs, paths, "array", below=True)
    placeable = (is_placeable(at.value) for at in leaves)
    both = zip(leaves, placeable, strict=True)
    return [_of_patterns(function, at, specs) if good else P() for at, good in both]


def _of_patterns(function: str, at: NamedLeaf, specs: Mapping[str, P | None]) -> P:
    """Return the spec of an array, which must be the same for stages stacked in it."""
    lines: dict[P, str] = {}
    for path in at.paths.flat:
        matched = [p for p in specs if matches(p, path, below=True)]
        for pattern in matched:
            spec = specs[pattern] or P()
            spec = spec if matches(pattern, path) else _cut(spec, at.value)
            lines.setdefault(spec, f"`{pattern}` for `{path}`: {spec}")
        if not matched:
            lines.setdefault(P(), f"no pattern for `{path}`: {P()}")
    if len(lines) > 1:
        wrong = f"patterns in `specs` disagree about `{at.name}`:"
        cure = "Let one pattern match each array, for example by naming it in full, "
        cure += "with `*` in the place of a position. Stages that are stacked in one "
        cure += "array have one spec, which begins with the axis of the stages."
        raise value_error(function, wrong + bullets(lines.values()), cure)
    return next(iter(lines), P())


def _as_spec(function: str, argument: str, spec: object) -> P:
    if is_spec_leaf(spec):
        return P() if spec is None else spec
    wrong = f"`{argument}` is {describe_value(spec)}."
    cure = "Give a `jax.sharding.PartitionSpec`, as in `P('data', None)`, or None for "
    cure += "a copy on every device. For specs by a function of the arrays, give "
    cure += "`jax.tree.map(f, equinox.filter(tree, equinox.is_array))`."
    raise type_error(function, wrong, cure)


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
    # On devices to compile for, arrays are types, with the shardings of arrays.
    there = is_there(mesh.devices.flat[0]) if isinstance(mesh, Mesh) else True
    leaves, shardings = [], []
    for name, leaf, sharding in resolved:
        if not there and sharding is not None and not isinstance(leaf, Tracer):
            leaf = jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
            sharding = None
        elif isinstance(leaf, jax.ShapeDtypeStruct):
            wrong = f"{f'`{name}`' if name else 'the tree'} is a "
            wrong += "`jax.ShapeDtypeStruct`, which has no values."
            cure = "Give arrays; `eqx_pipe.sharding.init_sharded` makes a model in its "
            cure += "shards."
            raise type_error(function, wrong, cure)
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
    - `mesh`, `specs`, `rules`: as in `shard`. For a `topology`, the model has types
      with shardings in place of arrays, which `program` compiles.

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

    if not is_there(mesh.devices.flat[0]):
        model = eqx.filter_eval_shape(lambda key: numpy_as_jax(init(key)), key)
        return shard_as("sharding.init_sharded", model, mesh, specs, rules)
    # Placed again with the kind of axes of the user's mesh, which moves no data.
    model = eqx.filter_jit(make)(key)
    return shard_as("sharding.init_sharded", model, mesh, specs, rules)


def constrain(x: Tree, *logical: LogicalAxis) -> Tree:
    """Constrain the sharding of an array inside a program by logical axis names.

    It takes effect under `with rules.on(mesh):`, and is the identity elsewhere, so a
    model with constraints also runs without rules. Use it inside `jit`; outside, it
    moves the array. It works under `grad` and `vmap` (the compiler chooses the sharding
    of the mapped axis), and does nothing inside `jax.shard_map`, a sweep, or a `vmap`,
    `batched` or `vmap_space` with a mesh, where every device already has its part.

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
    # The maps of this package hide the mesh.
    if current is None or in_shard_map or IN_LANE.value == "device":
        return x
    rules, mesh = current
    arrays, rest = eqx.partition(x, is_placeable)
    for name, leaf in leaves_with_names(arrays):
        if len(logical) != leaf.ndim:
            path = f"`{name}`: " if name else ""
            wrong = f"{path}{leaf_text(leaf)} has {leaf.ndim} axes, but {len(logical)} "
            wrong += "names are given."
            cure = "Give one name per axis, and None for an axis that is replicated."
            raise value_error("sharding.constrain", wrong, cure)
    spec = P(*logical)
    resolved, structure = resolve("sharding.constrain", arrays, mesh, spec, rules)
    placed = [
        constrain_to(jnp.asarray(leaf), mesh_like(mesh, leaf), sharding.spec)
        for _, leaf, sharding in resolved
        if sharding is not None
    ]
    return eqx.combine(jtu.tree_unflatten(structure, placed), rest)
