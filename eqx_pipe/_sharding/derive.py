"""The shardings of a function's inputs, from the constraints inside it.

`Plan` is what the functions of `parallelize` share: programs, and shapes seen so far.
"""

import contextlib
import itertools as it
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, Sharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled, Traced
from jaxtyping import Array

from .._errors import type_error, value_error
from .._jaxprs.jaxpr import equations
from .._mesh_context import check_mesh
from .._types import Device, PyTree
from .leaves import is_placeable
from .mesh import names_of, with_types
from .rules import AxisRules
from .specs import required

# Without any of these the compiler has nothing to carry back to the inputs.
_ANNOTATIONS = "sharding_constraint", "shard_map", "reshard"

Function = Callable[[PyTree, PyTree], PyTree]
"""A function of parameters and a batch."""


class Program(NamedTuple):
    """A compiled function and where its inputs have to be.

    `shardings` are those of the parameters and of the batch, `None` for leaves that are
    no arrays.
    """

    compiled: Compiled
    shardings: tuple[PyTree, PyTree]
    others: PyTree
    anchor: Array

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree:
        arrays = eqx.filter((params, batch), is_placeable)
        placed = jtu.tree_leaves(jax.device_put(arrays, self.shardings))
        return eqx.combine(self.compiled(self.anchor, *placed), self.others)


def struct_of(tree: PyTree) -> PyTree:
    """Shapes and dtypes in place of arrays, without their present shardings."""

    def strip(leaf: Any) -> Any:
        if not is_placeable(leaf):
            return leaf
        dtype = leaf.dtype
        if isinstance(leaf, np.ndarray | np.generic):  # 64-bit numbers may be off
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    return jtu.tree_map(strip, tree)


def cache_key(struct: PyTree) -> Hashable:
    """What distinguishes one program from another."""
    leaves, structure = jtu.tree_flatten(struct)
    return structure, tuple(
        (leaf.shape, str(leaf.dtype)) if is_placeable(leaf) else leaf for leaf in leaves
    )


def derive(fun: Function, struct: tuple[PyTree, PyTree], mesh: Mesh) -> Program:
    """Compiles `fun(params, batch)`, `struct` being both, and reads its shardings.

    The inputs are lowered without shardings, so the compiler carries those of the
    constraints back to them. An additional input that has one tells it the mesh, and
    so the answer is in terms of the mesh.
    """
    dynamic, static = eqx.partition(struct, is_placeable)
    arrays, structure = jtu.tree_flatten(dynamic)
    others: list[PyTree] = []

    def flat(anchor: Array, *arrays: Array) -> PyTree:
        out = fun(*eqx.combine(jtu.tree_unflatten(structure, arrays), static))
        dynamic, rest = eqx.partition(out, eqx.is_array)
        others[:] = [rest]
        return dynamic

    whole = NamedSharding(mesh, P())
    # Inputs that `fun` does not read are kept: each has an entry in `input_shardings`.
    anchor = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    traced = jax.jit(flat, keep_unused=True).trace(anchor, *arrays)
    compiled = None
    found: list[Sharding] = [whole] * len(arrays)
    if any(eqn.primitive.name in _ANNOTATIONS for eqn in equations(traced.jaxpr)):
        compiled, derived = _compiled(traced, flat, arrays, mesh)
        found = [_even(s, x, whole) for s, x in zip(derived, arrays, strict=True)]
        if any(a is not b for a, b in zip(derived, found, strict=True)):
            compiled = None
    else:
        warnings.warn(
            "`eqx_pipe.sharding.parallelize`: nothing inside `fun` says how an array "
            "is split, "
            "so every device gets a copy of all inputs. Use "
            "`eqx_pipe.sharding.constrain(x, "
            '"batch", ...)` in `fun` and give `rules=`.',
            stacklevel=4,
        )
    if compiled is None:
        jitted = jax.jit(flat, keep_unused=True, in_shardings=(whole, *found))
        compiled = jitted.lower(anchor, *arrays).compile()
    start = jax.device_put(np.zeros((), np.float32), whole)
    return Program(compiled, jtu.tree_unflatten(structure, found), others[0], start)


def mesh_inside(fun: Function, struct: tuple[PyTree, PyTree]) -> Mesh | None:
    """The mesh of the first constraint inside `fun(params, batch)` that has one."""
    dynamic, static = eqx.partition(struct, is_placeable)

    def arrays(dynamic: PyTree) -> PyTree:
        return eqx.filter(fun(*eqx.combine(dynamic, static)), eqx.is_array)

    for eqn in equations(jax.make_jaxpr(arrays)(dynamic)):
        for value in eqn.params.values():
            for item in value if isinstance(value, tuple | list) else (value,):
                mesh = item if isinstance(item, Mesh) else getattr(item, "mesh", None)
                if isinstance(mesh, Mesh):
                    return mesh
    return None


def _compiled(
    traced: Traced,
    flat: Callable[..., PyTree],
    arrays: Sequence[jax.ShapeDtypeStruct],
    mesh: Mesh,
) -> tuple[Compiled | None, Sequence[Sharding]]:
    """The compiled program, if it can be used as it is, and the inputs' shardings."""
    try:
        compiled = traced.lower().compile()
        return compiled, compiled.input_shardings[0][1:]
    except ValueError:
        # The compiler may split an axis in fewer parts than the mesh's axis has, which
        # JAX cannot put into words. Without an input on the mesh it does not try.
        anchor = jax.ShapeDtypeStruct((), jnp.float32)
        compiled = jax.jit(flat, keep_unused=True).lower(anchor, *arrays).compile()
        derived = compiled.input_shardings[0][1:]
        pairs = zip(derived, arrays, strict=True)
        return None, [_in_words(sharding, leaf.ndim, mesh) for sharding, leaf in pairs]


def _in_words(sharding: Sharding, rank: int, mesh: Mesh) -> NamedSharding:
    """A sharding in terms of the mesh, a copy everywhere if there is no such one."""
    for axes in it.product((None, *range(rank)), repeat=len(mesh.axis_names)):
        pairs = list(zip(mesh.axis_names, axes, strict=True))
        entries = [tuple(n for n, at in pairs if at == axis) for axis in range(rank)]
        candidate = NamedSharding(mesh, P(*entries))
        if sharding.is_equivalent_to(candidate, rank):
            return candidate
    return NamedSharding(mesh, P())


def _even(
    sharding: Sharding, leaf: jax.ShapeDtypeStruct, whole: NamedSharding
) -> Sharding:
    """The sharding, or a copy on every device where sizes do not divide."""
    try:
        sharding.shard_shape(leaf.shape)
    except ValueError:
        return whole
    return sharding


class Plan:
    """What the returned functions share: the programs, and the structs seen so far.

    It is a cache: everything in it can be computed again.
    """

    def __init__(
        self,
        fun: Function,
        init: Callable[..., PyTree] | None,
        get: Callable[..., PyTree] | None,
        mesh: Mesh | None,
        rules: AxisRules | None,
    ):
        self.init, self.get, self.mesh, self.rules = init, get, mesh, rules
        self.params: PyTree | None = None
        self.batch: PyTree | None = None
        self.ahead: list[PyTree] = []  # a batch that was made for its shapes
        self.programs: dict[Hashable, Program] = {}

        def under_rules(params: PyTree, batch: PyTree) -> PyTree:
            with self.context():
                return fun(params, batch)

        self.fun = under_rules
        self.jitted = eqx.filter_jit(under_rules)

    def context(self) -> AbstractContextManager[object]:
        if self.rules is None or self.mesh is None:
            return contextlib.nullcontext()
        return self.rules.on(self.mesh)

    def program(self, params: PyTree, batch: PyTree) -> Program:
        struct = struct_of((params, batch))
        known = cache_key(struct)
        if self.mesh is None:
            self.mesh = mesh_for(mesh_inside(self.fun, struct), None, None)
        if known not in self.programs:
            self.programs[known] = derive(self.fun, struct, self.mesh)
        return self.programs[known]

    def shardings(self) -> tuple[PyTree, PyTree] | None:
        """Those of the parameters and the batch, if the shapes of both are known."""
        if self.params is None or self.batch is None:
            return None
        return self.program(self.params, self.batch).shardings

    def guess_params(self) -> None:
        """Learns the shapes of the parameters before they are made, if that can be."""
        if self.params is None and self.init is not None:
            self.params = _try(self.init, (jr.key(0),))

    def guess_batch(self) -> None:
        """Learns the shapes of a batch before one was asked for, if that can be.

        A function without arguments is called, and the batch kept for the first call;
        it may be an iterator's `next`.
        """
        if self.batch is not None or self.get is None:
            return
        if required(self.get):
            self.batch = _try(self.get, (0, jr.key(0)))
        else:
            self.ahead.append(self.get())
            self.batch = struct_of(self.ahead[0])


def mesh_for(
    mesh: Mesh | None, devices: Sequence[Device] | None, rules: AxisRules | None
) -> Mesh:
    """The mesh with automatic axes, whose shardings the compiler derives."""
    if mesh is not None and devices is not None:
        raise value_error(
            "sharding.parallelize",
            "both `mesh` and `devices` were given.",
            "Give the mesh alone; it has its devices.",
        )
    if mesh is not None:
        check_mesh("sharding.parallelize", mesh)
        return with_types(mesh, AxisType.Auto)
    held = np.array(jax.devices() if devices is None else devices)
    if held.ndim != 1 or not all(isinstance(d, jax.Device) for d in held):
        raise type_error(
            "sharding.parallelize",
            f"`devices` is {devices!r}.",
            "Give a list of devices: `jax.devices()[:4]`.",
        )
    named = [] if rules is None else [n for _, a in rules.pairs for n in names_of([a])]
    axes = tuple(dict.fromkeys(named)) or ("devices",)
    shape = (held.size,) + (1,) * (len(axes) - 1)
    # Automatic axes are asked for: `jax.make_mesh` makes explicit ones unless told, and
    # on those nothing is derived.
    return Mesh(held.reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))


def _try(fn: Callable[..., PyTree], candidates: Sequence[object]) -> PyTree | None:
    """The struct of what `fn` returns for the first candidate that it takes."""
    if len(required(fn)) > 1:
        return None
    for candidate in candidates:
        try:
            return struct_of(eqx.filter_eval_shape(fn, candidate))
        except Exception:  # a guess that does not fit may fail in any way
            continue
    return None
