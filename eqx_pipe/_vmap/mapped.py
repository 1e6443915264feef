"""`vmap`: `jax.vmap` in batches that fit in memory, on every device of a mesh."""

import functools as ft
import itertools as it
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Literal, SupportsIndex, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from .._captured import named
from .._check import (
    check_bool,
    check_callable,
    check_choice,
    check_dense,
    check_int,
    common_size,
    is_integer,
)
from .._compiled import default_devices
from .._errors import describe_value, structure_error, type_error, value_error
from .._jaxprs import (
    as_function,
    draws_together,
    effects,
    has_refs,
    on_values,
    open_jaxpr,
    refs_of,
    trace,
    written,
)
from .._keys import rbg_error
from .._mesh_context import IN_LANE, check_mesh, is_explicit
from .._tree import (
    Opaque,
    as_data,
    as_keys,
    can_be_traced,
    fill,
    is_none,
    is_ref,
    is_sparse,
    leaf_text,
    tree_text,
)
from .._types import AnyJaxpr, PyTree
from .batch_size import analyze, choose_batch_size, even_out
from .batches import (
    First,
    first_copies,
    flat_mesh,
    in_batches,
    is_on_device,
    over_devices,
    summed,
)

Axis: TypeAlias = int | None

Outputs: TypeAlias = tuple[list[Any], list[Any]]
"""Outputs that are stacked over the lanes, and outputs that are equal for all lanes."""


Lane: TypeAlias = Callable[..., Outputs]
"""A function of the slices of one lane."""


class Vmapped(eqx.Module):
    """A function under `vmap`; see `vmap`."""

    fn: Callable[..., Any]
    axes: Opaque = eqx.field(static=True)  # `in_axes` and `out_axes`
    axis_name: Hashable | None = eqx.field(static=True)
    axis_size: int | None = eqx.field(static=True)
    batch_size: Any = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)
    remat: bool = eqx.field(static=True)
    reduce: Literal["sum", "mean"] | None = eqx.field(static=True)

    def __call__(self, *args: PyTree, **kwargs: PyTree) -> PyTree:
        in_axes = self.axes.values[0]
        if isinstance(in_axes, tuple) and len(in_axes) != len(args):
            wrong = f"`in_axes` is {in_axes!r}, and there are {len(args)} positional "
            wrong += "arguments."
            cure = "Give one axis for each of them, or one integer for all; keyword "
            cure += "arguments are mapped over axis 0."
            raise structure_error("vmap", wrong, cure)
        axes = [
            *leaf_axes("vmap", "in_axes", in_axes, args, "the arguments"),
            *leaf_axes("vmap", "in_axes", 0, kwargs, "the keyword arguments"),
        ]
        inputs = {"args": args, "kwargs": kwargs}
        leaves, structure = jtu.tree_flatten(inputs, is_leaf=is_sparse)
        pairs = zip(leaves, axes, strict=True)
        axes = [a if _can_be_mapped(x) else None for x, a in pairs]
        pairs = zip(leaves, axes, strict=True)
        mapped = structure.unflatten([None if a is None else x for x, a in pairs])
        check_dense("vmap", "the input", mapped, "Make it dense by `.todense()`.")
        size, along = self.axis_size, [a for a in axes if a is not None]
        if along or size is None:
            cure = "Every mapped array needs the same size along its axis; use `None` "
            cure += "in `in_axes` for values that all lanes share. If no array is "
            cure += "mapped, give `axis_size`."
            size = common_size("vmap", "the input", mapped, along, cure)
            if self.axis_size not in (None, size):
                wrong = f"`axis_size` is {self.axis_size}, but the input has {size} "
                raise structure_error("vmap", f"{wrong}lanes.", cure)
        return _Call(self, inputs, axes, size).run()

    # Not by `equinox.module_update_wrapper`, which makes them part of the structure.
    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.fn

    @property
    def __doc__(self) -> str | None:
        return named(self.fn).__doc__

    def __getattr__(self, name: str) -> Any:
        if name in ("__name__", "__qualname__"):
            return getattr(named(self.fn), name)
        raise AttributeError(f"a function under `vmap` has no attribute `{name}`")

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else jtu.Partial(self, instance)

    def __hash__(self) -> int:
        # `jax.jit` needs a hash, which a Module with arrays does not have.
        return id(self)


class _Call:
    """One call of a vectorised function."""

    def __init__(self, of: Vmapped, inputs: PyTree, axes: Sequence[Axis], size: int):
        leaves, self.structure = jtu.tree_flatten(inputs, is_leaf=is_sparse)
        self.of, self.size = of, size
        self.is_mapped = [axis is not None for axis in axes]
        mapped = list(it.compress(leaves, self.is_mapped))
        self.axes = [axis for axis in axes if axis is not None]
        # Each lane has references to its own slices, and returns their new values.
        self.refs = [x if is_ref(x) else None for x in mapped]
        self.changed = [True] * len(mapped)  # until they are known
        self.mapped = [_value(x, of.mesh) if is_ref(x) else x for x in mapped]
        # The lanes share these arrays; a function may be a Module with some.
        others = [None if m else x for x, m in zip(leaves, self.is_mapped, strict=True)]
        self.shared, self.static = eqx.partition((of.fn, others), eqx.is_array)

    def lane(self, shared: PyTree, *slices: Any) -> Outputs:
        """Call the function for one lane, and record the structure of its output."""
        fn, others = eqx.combine(shared, self.static)
        pairs = zip(slices, self.refs, strict=True)
        parts = [x if ref is None else jax.new_ref(x) for x, ref in pairs]
        leaves = fill(others, self.is_mapped, parts)
        inputs = jtu.tree_unflatten(self.structure, leaves)
        on_device = self.of.mesh is not None or IN_LANE.value == "device"
        with IN_LANE("device" if on_device else "lane"):
            out = fn(*inputs["args"], **inputs["kwargs"])
        check_dense("vmap", "the output", out, "Return its entries as an array.")
        self.out, self.out_structure = jtu.tree_flatten(out)
        axes = leaf_axes("vmap", "out_axes", self.of.axes.values[1], out, "the output")
        self.is_output = list(map(_is_output, self.out))
        arrays = list(it.compress(self.out, self.is_output))
        self.out_axes = list(it.compress(axes, self.is_output))
        how = self.of.reduce
        self.totals = [] if how is None else [_dtype_of_total(how, x) for x in arrays]
        both = list(zip(arrays, self.out_axes, strict=True))
        values = [x[...] for x in parts if is_ref(x)]
        stacked = [x for x, a in both if a is not None]
        return [*stacked, *values], [x for x, a in both if a is None]

    def run(self) -> PyTree:
        """Return the output of the call."""
        of, size = self.of, self.size
        if of.mesh is not None:
            _check_can_split(of.mesh)
        if of.axis_name is not None:  # a collective sees the lanes of one `vmap`
            self.check_one_batch()
            return self.finish(self.vmapped(ft.partial(self.lane, self.shared)))
        # One lane is traced by itself: its references, effects and sizes decide how the
        # lanes run. The batches evaluate this jaxpr, so `fn` is called once, and once
        # more on a mesh that the types of arrays name.
        structs = list(map(_lane_struct, self.mapped, self.axes))
        jaxpr = trace(ft.partial(self.lane, self.shared), *structs)
        refs, changed = refs_of(jaxpr)
        if refs:
            self.check_only_read(refs, changed)
            # The lanes only read these, so they get the values: the loop over batches
            # then has no effect on them.
            values = [_value(ref, of.mesh) for ref in refs]
            jaxpr = trace(ft.partial(on_values(jaxpr, refs), *values), *structs)
        run = ft.partial(self.evaluated, jaxpr, jaxpr.consts)
        mesh = of.mesh or self.mesh_of_inputs()
        # A reference that a lane makes of an input is its part of the user's reference,
        # which changes if the lane writes to it.
        inner, into = open_jaxpr(jaxpr)[0], written(jaxpr)
        made = [eqn for eqn in inner.eqns if eqn.primitive.name == "new_ref"]
        changed = [id(eqn.invars[0]) for eqn in made if eqn.outvars[0] in into]
        self.changed = [id(v) in changed for v in inner.invars]
        self.effects = effects(jaxpr, named=False)
        for_debugging = ["Debug" in type(e).__name__ for e in self.effects]
        self.repeatable = all(for_debugging) and not has_refs(jaxpr)
        if self.effects and mesh is not None and size % mesh.size:
            mesh = None  # copies of lanes would have the effects once more
        each = -(-size // (1 if mesh is None else mesh.size))
        batch = 1 if self.effects else self.batch_size(jaxpr, mesh, max(each, 1))
        # Outputs that all lanes share are those of the plain `vmap`, so effects happen
        # there.
        at_once = of.mesh is None and batch >= each and not self.effects
        if at_once or size == 0 or (self.effects and None in self.out_axes):
            return self.finish(self.vmapped(run))
        if batch > 1 and draws_together(jaxpr, 1):
            if draws_together(trace(lambda: self.vmapped(run))):
                raise rbg_error("vmap", "`fn` draws from keys")
        same = []
        if None in self.out_axes:
            # JAX raises if they vary. Under `jit` nothing else is computed.
            same = jax.jit(lambda: self.vmapped(run)[1])()
        # The data of keys, which JAX lets a program copy and transpose.
        pairs = zip(self.mapped, self.axes, strict=True)
        lanes = [jnp.moveaxis(as_data(x), a % x.ndim, 0) for x, a in pairs]
        if mesh is not None:
            return self.finish((self.on_mesh(jaxpr, mesh, lanes, batch), same))
        first = None if lanes else jnp.ones(size, bool)
        return self.finish((self.on_device(run, lanes, first, batch), same))

    def evaluated(
        self, jaxpr: AnyJaxpr, consts: Sequence[Any], *slices: Any
    ) -> Outputs:
        """Return the outputs of a lane that was traced, for other constants."""
        outputs = as_function(jaxpr, consts)(*slices)
        same = self.out_axes.count(None)
        return outputs[: len(outputs) - same], outputs[len(outputs) - same :]

    def vmapped(self, lane: Lane) -> Outputs:
        """Return the outputs of all lanes at once."""
        axis: Any = {"axis_name": self.of.axis_name, "axis_size": self.size}
        every: Any = jax.vmap(lane, tuple(self.axes), (0, None), **axis)
        stacked, same = every(*self.mapped)
        pairs = zip(stacked, self.totals, strict=False)
        sums = [summed(y.astype(_wide(dtype)), None) for y, dtype in pairs]
        return [*sums, *stacked[len(sums) :]], same

    def batch_size(self, jaxpr: AnyJaxpr, mesh: Any, each: int) -> int:
        """Return the number of lanes of a batch, of the `each` lanes of a device."""
        asked = self.of.batch_size
        if asked != "auto":
            return even_out(asked, each, 1)
        if IN_LANE.value:
            return each
        if isinstance(mesh, Mesh):
            here = jax.process_index()
            devices = [d for d in mesh.devices.flat if d.process_index == here]
        else:
            devices = default_devices() * (1 if mesh is None else mesh.size)
        analysis = analyze(jaxpr, [True] * len(self.mapped))
        return choose_batch_size(analysis, each * len(devices), devices)

    def on_device(
        self, lane: Lane, lanes: list[Any], first: First | None, batch: int
    ) -> list[Any]:
        """Return the totals and stacked outputs of the lanes of a device, in batches.

        `first` is given if some lanes are copies of others, or if no array is mapped.
        """
        number = len(lanes)
        rows = [*lanes] if first is None else [*lanes, first]

        def step(carry: Any, rows: list[Any], here: First | None) -> Any:
            for among_devices in rows[number:]:
                here = among_devices if here is None else here & among_devices
            stacked = self.one_batch(lane, rows[:number], batch)
            pairs = zip(carry, stacked, strict=False)
            sums = [c + summed(y.astype(c.dtype), here) for c, y in pairs]
            return sums, stacked[len(sums) :]

        init = []
        if self.totals:
            structs, _ = jax.eval_shape(lambda: lane(*self.with_keys(lanes, 0)))
            pairs = zip(structs, self.totals, strict=False)
            init = [_zeros(y, _wide(dtype)) for y, dtype in pairs]
        # JAX cannot repeat references, and other effects than those for debugging.
        remat = self.of.remat and self.repeatable
        totals, outputs = in_batches(step, init, rows, batch, remat=remat)
        return [*totals, *outputs]

    def one_batch(self, lane: Lane, rows: list[Any], batch: int) -> list[Any]:
        """Return the stacked outputs of a batch."""
        if batch > 1:
            every: Any = jax.vmap(lane, out_axes=(0, None), axis_size=batch)
            return every(*self.with_keys(rows))[0]
        stacked, _ = lane(*self.with_keys(rows, 0))
        return [jnp.expand_dims(y, 0) for y in stacked]

    def with_keys(self, rows: list[Any], lane: Any = ...) -> Iterator[Any]:
        """Yield the arrays of lanes, or of one, with keys in place of their data."""
        return (as_keys(x[lane], y) for x, y in zip(rows, self.mapped, strict=True))

    def on_mesh(
        self, jaxpr: AnyJaxpr, mesh: Any, lanes: list[Any], batch: int
    ) -> list[Any]:
        """Return the stacked outputs of all lanes, which are split over the devices."""
        total = -(-self.size // mesh.size) * mesh.size
        copied = total > self.size
        first = np.arange(total) < self.size if copied or not lanes else None
        # An equation records the mesh in its arrays' types, so it must be traced again
        # inside of the map. Where types name no mesh, the map has an internal one.
        arrays = [x for x in jtu.tree_leaves((lanes, self.shared)) if _mesh_of(x)]
        typed = bool(arrays) or not jax.sharding.get_abstract_mesh().empty
        if typed:
            mesh = _typed_like(mesh, arrays)
        shared: Any = self.shared if typed else list(jaxpr.consts)
        explicit = typed and is_explicit(mesh)
        if explicit:
            split = P(mesh.axis_names)
            lanes = _placed(lanes, mesh, P() if copied else split)
            first = _placed(first, mesh, split)
            shared = _placed(shared, mesh, P())
        sums = len(self.totals)

        on = mesh if typed else flat_mesh(mesh.devices)

        def alone(lanes: list[Any], first: First | None, shared: Any) -> Any:
            if copied:  # uneven lanes are whole on each device, which takes its own
                each = total // mesh.size
                at = jax.lax.axis_index(on.axis_names) * each + np.arange(each)
                lanes = [jnp.take(x, at % self.size, 0, mode="clip") for x in lanes]
            lane: Any = ft.partial(self.evaluated, jaxpr, shared)
            if typed:
                lane = ft.partial(self.lane, shared)
            stacked = self.on_device(lane, lanes, first, batch)
            return [*[x[None] for x in stacked[:sums]], *stacked[sums:]]

        every = over_devices(alone, on, (not copied, True, False), leave_mesh=not typed)
        # Outside of `jit`, JAX runs a `shard_map` operation by operation.
        stacked = jax.jit(every, inline=True)(lanes, first, shared)
        # Each device has a total of its own lanes.
        totals, stacked = [jnp.sum(x, axis=0) for x in stacked[:sums]], stacked[sums:]
        if copied and explicit:
            # JAX does not implement uneven slices of arrays with explicit sharding.
            stacked = _placed(stacked, mesh, P())
        return [*totals, *[first_copies(y, self.size) for y in stacked]]

    def finish(self, outputs: Outputs) -> PyTree:
        """Return outputs as the function returns them, with the axis of lanes."""
        stacked, same = map(iter, outputs)
        axes, totals = iter(self.out_axes), iter(self.totals)
        leaves = []
        for leaf, is_output in zip(self.out, self.is_output, strict=True):
            if not is_output:
                leaves.append(self.constant(leaf))
            elif (axis := next(axes)) is None:
                leaves.append(next(same))
            elif self.of.reduce is None:
                leaves.append(jnp.moveaxis(next(stacked), 0, axis))
            else:
                total, dtype = next(stacked), next(totals)
                mean = self.of.reduce == "mean"
                total = total / self.size if mean else total
                leaves.append(total.astype(dtype))
        each = zip(self.refs, self.axes, self.changed, strict=True)
        for ref, axis, changed in each:
            value = None if ref is None else jnp.moveaxis(next(stacked), 0, axis)
            if ref is not None and changed:
                there = None if isinstance(value, Tracer) else ref.sharding
                ref[...] = jax.device_put(value, there)
        return self.out_structure.unflatten(leaves)

    def constant(self, leaf: Any) -> Any:
        """Return a leaf that is not an array; `float0` is stacked, as by `jax.vmap`."""
        if getattr(leaf, "dtype", None) != jax.dtypes.float0:
            return leaf
        shape = leaf.shape if self.of.reduce else (self.size, *leaf.shape)
        return np.zeros(shape, leaf.dtype)

    def check_one_batch(self) -> None:
        """Raise if a batch is not the whole axis, which a collective then misses."""
        of = self.of
        devices = 1 if of.mesh is None else of.mesh.size
        batch = self.size if of.batch_size == "auto" else of.batch_size
        if self.size > 1 and (devices > 1 or batch < self.size):
            wrong = f"`axis_name` is {of.axis_name!r}, and {self.size} lanes in "
            wrong += f"batches of {min(batch, self.size)} on {devices} "
            wrong += f"device{'s' * (devices > 1)} are several batches: a collective "
            wrong += "would not see the whole axis."
            cure = "Leave out `axis_name`, or `batch_size` and `mesh`."
            raise value_error("vmap", wrong, cure)

    def check_only_read(self, refs: Sequence[Any], changed: Sequence[Any]) -> None:
        """Raise if a lane writes to a reference of all, or reads one of another lane.

        The lanes share `refs`, and write to those that are `changed`.
        """
        if changed:
            text = leaf_text(changed[0])
            wrong = f"`fn` writes to a reference that its lanes share, {text}."
            cure = "Give it as an argument with an axis in `in_axes`, so that each "
            cure += "lane has its part, or return the value."
            raise value_error("vmap", wrong, cure)
        if any(ref is mapped for ref in refs for mapped in self.refs):
            wrong = f"`fn` reads the whole of a reference, {leaf_text(refs[0])}, of "
            wrong += "which each lane has a part."
            cure = "Read it before: `ref[...]`."
            raise value_error("vmap", wrong, cure)

    def mesh_of_inputs(self) -> Any:
        """Return the mesh over which the types of arrays split the lanes, if any."""
        for x, axis in zip(self.mapped, self.axes, strict=True):
            mesh = _mesh_of(x)
            if mesh is not None and jax.typeof(x).sharding.spec[axis] is not None:
                return mesh
        return None


def _value(ref: Any, mesh: Mesh | None) -> Any:
    """Return the value of a reference, which JAX binds to its device, on the mesh."""
    value = ref[...]
    if mesh is None or isinstance(value, Tracer):
        return value
    return jax.device_put(value, NamedSharding(mesh, P()))


def _can_be_mapped(leaf: object) -> bool:
    return can_be_traced(leaf) or is_sparse(leaf) or is_ref(leaf)


def _is_output(leaf: object) -> bool:
    """Return whether `jax.vmap` can stack an output."""
    if isinstance(leaf, np.ndarray | np.generic):
        return can_be_traced(np.asarray(leaf)) and leaf.dtype != jax.dtypes.float0
    return eqx.is_array_like(leaf)


def _lane_struct(x: object, axis: int) -> jax.ShapeDtypeStruct:
    """Return the struct of one lane of an array."""
    kind: Any = jax.typeof(x)
    also = {}
    if AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types:
        # In an outer `shard_map` types tell which values vary between devices.
        spec = P(*np.delete(np.array(kind.sharding.spec, object), axis))
        also["sharding"] = NamedSharding(kind.sharding.mesh, spec)
        also["manual_axis_type"] = kind.manual_axis_type
    shape = np.delete(kind.shape, axis).tolist()
    weak = getattr(kind, "weak_type", False)
    return jax.ShapeDtypeStruct(tuple(shape), kind.dtype, weak_type=weak, **also)


def _zeros(struct: Any, dtype: Any) -> Any:
    """Return zeros that vary over the same axes of an outer `shard_map`."""
    zeros = jax.lax.full(struct.shape, 0, dtype)
    kind = getattr(struct, "manual_axis_type", None)
    varying = () if kind is None else tuple(kind.varying)
    return jax.lax.pcast(zeros, varying, to="varying") if varying else zeros


def _mesh_of(x: object) -> Any:
    """Return the mesh in an array's type, if it has explicit axes."""
    if not isinstance(x, jax.Array):
        return None
    mesh = jax.typeof(x).sharding.mesh
    return mesh if is_explicit(mesh) else None


def _typed_like(mesh: Any, arrays: Sequence[Any]) -> Any:
    """Return the mesh with the types of axes that it has in the context, or arrays."""
    context: Any = jax.sharding.get_abstract_mesh()
    other = _mesh_of(arrays[0]) if context.empty else context
    if not isinstance(mesh, Mesh) or other.axis_names != mesh.axis_names:
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=other.axis_types)


def _placed(tree: PyTree, mesh: Any, spec: P) -> PyTree:
    """Return arrays with an explicit sharding, which a `shard_map` requires."""

    def one(x: Any) -> Any:
        # A copy without a mesh would change the type of its cotangent.
        plain = spec == P() and _mesh_of(x) is None
        return x if plain else jax.sharding.reshard(x, NamedSharding(mesh, spec))

    return jtu.tree_map(one, tree)


def _dtype_of_total(reduce: str, x: object) -> Any:
    """Return the dtype of `jnp.sum` or `jnp.mean` over lanes with such outputs."""
    dtype = jnp.result_type(x)
    if not jnp.issubdtype(dtype, jnp.number) and not jnp.issubdtype(dtype, jnp.bool_):
        wrong = f"`reduce` is {reduce!r}, and an output is {leaf_text(x)}."
        cure = "Return numbers, or leave out `reduce`."
        raise value_error("vmap", wrong, cure)
    total: Any = jnp.sum if reduce == "sum" else jnp.mean
    return jax.eval_shape(total, jax.ShapeDtypeStruct((1,), dtype)).dtype


def _wide(total: Any) -> Any:
    """Return the dtype in which batches are summed: float32 for half precision."""
    half = jnp.issubdtype(total, jnp.floating) and jnp.finfo(total).bits < 32
    return jnp.dtype(jnp.float32) if half else total


def leaf_axes(
    function: str, argument: str, prefix: PyTree, tree: PyTree, subject: str
) -> list[Any]:
    """Return the axis of each leaf of a tree, whether or not it is an array.

    `prefix` is a prefix of the tree, of integers, `None`, and functions of a leaf.
    """
    leaves, structure = jtu.tree_flatten(tree, is_leaf=is_sparse)
    indices = structure.unflatten(range(len(leaves)))
    try:
        spread = jax.tree.broadcast(prefix, indices, is_leaf=is_none)
    except ValueError:
        wrong = f"`{argument}` is {prefix!r}, which is not a prefix of {subject}, "
        wrong += f"{tree_text(tree)}."
        cure = "Give one integer, or a pytree of integers and `None` with the same "
        cure += "containers, down to where they end."
        raise structure_error(function, wrong, cure) from None
    axes: list[Any] = jtu.tree_leaves(spread, is_leaf=is_none)
    both: Any = zip(jtu.tree_leaves(indices, is_leaf=is_none), axes, strict=True)
    real = [(leaves[i], axis) for i, axis in both if i is not None]
    return [axis(leaf) if callable(axis) else axis for leaf, axis in real]


def _check_can_split(mesh: Mesh) -> None:
    """Raise if devices already run different parts, so none is left for `mesh`."""
    manual = AxisType.Manual in jax.sharding.get_abstract_mesh().axis_types
    if manual or IN_LANE.value == "device" or is_on_device():
        wrong = f"`mesh` has the axes {mesh.axis_names}, and this is called inside of "
        wrong += "a `shard_map` or another `vmap` with a mesh, where each device "
        wrong += "already runs its own part."
        cure = "Leave out `mesh` here."
        raise value_error("vmap", wrong, cure)


def vmap(
    fn: Callable[..., Any],
    in_axes: PyTree = 0,
    out_axes: PyTree = 0,
    *,
    axis_name: Hashable | None = None,
    axis_size: SupportsIndex | None = None,
    batch_size: SupportsIndex | Literal["auto"] = "auto",
    mesh: Mesh | None = None,
    remat: bool = True,
    reduce: Literal["sum", "mean"] | None = None,
) -> Vmapped:
    """Vectorise a function like `jax.vmap`, in batches and on every device of a mesh.

    Each device computes its lanes in one loop over batches, so temporary memory is that
    of a batch, for a gradient too. Use it under `jit`: otherwise each call traces and
    compiles again.

    If lanes do not fill the last batch, some lanes are computed twice, and their copies
    are dropped. Functions with effects (`jax.debug.print`, `io_callback`) run lane by
    lane, each lane once, or as under `jax.vmap` if `out_axes` has a `None`; under
    `grad` the effects for debugging repeat, as under `jax.checkpoint`, and other
    effects disable `remat`.

    **Arguments:**

    - `fn`: the function of one lane. Its output is a pytree; leaves that are not arrays
        or numbers come from one lane.
    - `in_axes`, `out_axes`: as for `jax.vmap`. An entry may also be a function of a
        leaf that returns an axis, as `equinox.if_array(0)`. Leaves of arguments that
        are not arrays are passed to each lane unchanged. Keyword arguments are mapped
        over axis 0.
    - `axis_name`: a name for the axis, for collectives inside of `fn`. All lanes must
        be in one batch. (Keyword only.)
    - `axis_size`: the number of lanes, needed only if no array is mapped. (Keyword
        only.)
    - `batch_size`: the maximum number of lanes of a batch on each device; batches are
        made equal. `"auto"` chooses it from the operations of `fn` and the free memory,
        as `sweep` does; give a number if that runs out of memory, or after you measured
        a faster one. Inside of another `eqx_pipe.vmap` `"auto"` is one batch, since the
        sizes of nested batches multiply. With one batch this is `jax.vmap` without a
        loop. (Keyword only.)
    - `mesh`: a mesh, to use several devices; the lanes are split over all of its axes.
        Lanes with effects run on one device if they do not divide. By default, lanes
        stay on the devices over which the types of arguments with explicit sharding
        split them. (Keyword only.)
    - `remat`: if true, reverse mode computes each batch again, and stores nothing of
        it. If false, it stores what `jax.vmap` stores: faster, if that fits into
        memory. (Keyword only.)
    - `reduce`: `"sum"` or `"mean"` of the outputs over the lanes, added batch by batch,
        for a loss over more samples than fit: no output of a lane is stored. Half
        precision is summed in float32. (Keyword only.)

    **Returns:** a function with the arguments of `fn`, and additional axes at `in_axes`
    and `out_axes`.

    **Shapes:** an array `(*a,)` of a lane is `(n, *a)` for n lanes, or has n at the
    given axis. With `reduce`, outputs have the shape of one lane's.

    **Raises:**

    - `StructureError` (a `ValueError`), when called, if numbers of lanes differ, or
      axes do not fit the arguments.
    - `ValueError`, when called, if `axis_name` is given and there are several batches,
      `mesh` is given inside of a `shard_map`, an output cannot be summed, lanes write
      to a reference that they share, several batches draw from keys of the kind `rbg`,
      or, from JAX, an output with the axis `None` varies.
    - `TypeError` or `ValueError` if an argument is wrong.

    **Laws:** equal to `jax.vmap(fn, in_axes, out_axes)` to rounding, as are all
    derivatives, for every batch size and mesh; bitwise if the same number of lanes
    shares a batch.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> energy = lambda w, x: jnp.sum(jnp.tanh(w * x))
        >>> energies = ep.vmap(energy, in_axes=(None, 0), batch_size=64)
        >>> samples = jnp.ones((1000, 3))
        >>> jax.jit(energies)(0.0, samples).shape
        (1000,)
        >>> mean = ep.vmap(energy, in_axes=(None, 0), batch_size=64, reduce="mean")
        >>> round(jax.jit(jax.grad(mean))(0.0, samples).item(), 4)
        3.0
    """
    check_callable("vmap", "fn", fn, "Give the function of one lane.")
    in_axes = tuple(in_axes) if isinstance(in_axes, list) else in_axes
    for name, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        for axis in jtu.tree_leaves(axes):
            if not is_integer(axis) and not callable(axis):
                wrong = f"`{name}` holds {describe_value(axis)}."
                cure = "Give an integer, `None`, or a pytree of these."
                raise type_error("vmap", wrong, cure)
    if axis_size is not None:
        check_int("vmap", "axis_size", axis_size, 0)
        axis_size = operator.index(axis_size)
    if batch_size != "auto":
        check_int("vmap", "batch_size", batch_size, 1)
        batch_size = operator.index(batch_size)
    if mesh is not None:
        check_mesh("vmap", mesh)
    check_bool("vmap", "remat", remat)
    if reduce is not None:
        check_choice("vmap", "reduce", reduce, ("sum", "mean"))
        if out_axes != 0:
            wrong = f"`out_axes` is {out_axes!r}, and `reduce` is {reduce!r}: the "
            wrong += "outputs have no axis of lanes."
            cure = "Leave out one of them."
            raise value_error("vmap", wrong, cure)
    axes, remat = Opaque((in_axes, out_axes)), bool(remat)
    return Vmapped(fn, axes, axis_name, axis_size, batch_size, mesh, remat, reduce)
