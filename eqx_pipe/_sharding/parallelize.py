"""Parallelise a function and its inputs by the constraints inside it."""

import contextlib
import inspect
import warnings
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Compiled
from jaxtyping import Array

from .._check import check_callable
from .._compiled import is_there
from .._errors import value_error
from .._jaxprs import equations
from .._mesh_context import check_mesh, is_staged, with_axis_types
from .._tree import numpy_as_jax
from .._types import PyTree
from .place import (
    AxisRules,
    RulesLike,
    as_rules,
    current_rules,
    is_placeable,
    names_of,
    with_types,
    wraps_function,
)

# Without any of these the compiler has no sharding to propagate to the inputs.
_ANNOTATIONS = "sharding_constraint", "shard_map", "reshard"

Function = Callable[[PyTree, PyTree], PyTree]
"""A function of parameters and a batch."""


class Program(NamedTuple):
    """A compiled function and the shardings of its inputs: None for other leaves."""

    compiled: Compiled
    shardings: tuple[PyTree, PyTree]
    others: PyTree
    anchor: Array

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree:
        arrays = eqx.filter((params, batch), is_placeable)
        placed = jtu.tree_leaves(jax.device_put(arrays, self.shardings))
        return eqx.combine(self.compiled(self.anchor, *placed), self.others)


class _Parallel:
    """A function with its compiled programs, by the structs of their inputs.

    `params` and `batch` are the last known structs, and `ahead` is a batch that was
    made to learn its struct. Everything here can be recomputed.
    """

    def __init__(
        self,
        fun: Function,
        init: Callable[..., PyTree] | None,
        get: Callable[..., PyTree] | None,
        mesh: Mesh,
        rules: AxisRules | None,
    ):
        def under_rules(params: PyTree, batch: PyTree) -> PyTree:
            with contextlib.nullcontext() if rules is None else rules.on(mesh):
                return fun(params, batch)

        self.fun, self.init, self.get, self.mesh = under_rules, init, get, mesh
        self.jitted = eqx.filter_jit(under_rules)
        self.params: PyTree = None
        self.batch: PyTree = None
        self.ahead: list[PyTree] = []
        self.programs: dict[Hashable, Program] = {}

    def program(self, params: PyTree, batch: PyTree) -> Program:
        struct = struct_of((params, batch))
        leaves, structure = jtu.tree_flatten(struct)
        key = structure, tuple(leaves)
        if key not in self.programs:
            self.programs[key] = _derive(self.fun, struct, self.mesh)
        return self.programs[key]

    def shardings(self) -> tuple[PyTree, PyTree]:
        return self.program(self.params, self.batch).shardings

    def run(self, function: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """Call a function in this mesh context; its outputs fit the user's context."""
        types = jax.sharding.get_abstract_mesh().axis_types
        if AxisType.Explicit not in types or is_staged():
            return function(*args)
        # The compiler derives shardings only on automatic axes.
        with jax.set_mesh(self.mesh):
            out = function(*with_axis_types(args))
        return with_axis_types(out, types)

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree:
        leaves = jtu.tree_leaves((params, batch))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            # Under a transformation inputs cannot be placed: run an ordinary `jit`.
            return self.jitted(params, batch)
        return self.run(lambda *args: self.program(*args)(*args), params, batch)

    def init_params(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return the parameters, each created in its shards."""
        self._learn_batch()
        return self.run(self._made, args, kwargs)

    def _learn_batch(self) -> None:
        """Find the shapes of a batch, and keep a batch that is made for that."""
        if self.batch is not None:
            return
        if self.get is None or not _needs_nothing(self.get):
            wrong = "the shapes of a batch are not known yet, and the shardings of the "
            wrong += "parameters depend on them."
            cure = "Call `get_input_batch` once before `init_params`, or give "
            cure += "`initial_batch`, too."
            raise value_error("sharding.parallelize", wrong, cure)
        self.ahead.append(self.get())
        self.batch = struct_of(self.ahead[0])

    def _made(self, args: Any, kwargs: Any) -> PyTree:
        init: Any = self.init
        self.params = eqx.filter_eval_shape(init, *args, **kwargs)
        where = self.shardings()[0]

        def make(args: Any, kwargs: Any) -> PyTree:
            params = numpy_as_jax(init(*args, **kwargs))
            arrays, rest = eqx.partition(params, is_placeable)
            return eqx.combine(jax.lax.with_sharding_constraint(arrays, where), rest)

        return eqx.filter_jit(make)(args, kwargs)

    def get_input_batch(self, *args: Any, **kwargs: Any) -> PyTree:
        """Return a batch, placed once the shardings are known."""
        get: Any = self.get
        plain = not args and not kwargs
        batch = self.ahead.pop() if plain and self.ahead else get(*args, **kwargs)
        self.batch = struct_of(batch)
        if self.params is None and self.init is not None and _needs_nothing(self.init):
            self.params = eqx.filter_eval_shape(self.init)
        if self.params is None:
            return batch
        return self.run(self._placed, batch)

    def _placed(self, batch: PyTree) -> PyTree:
        arrays, rest = eqx.partition(batch, is_placeable)
        return eqx.combine(jax.device_put(arrays, self.shardings()[1]), rest)


def struct_of(tree: PyTree) -> PyTree:
    """Replace arrays by structs, without their current shardings."""

    def strip(leaf: object) -> Any:
        if not is_placeable(leaf):
            return leaf
        dtype = leaf.dtype
        if isinstance(leaf, np.ndarray | np.generic):  # 64-bit dtypes may be disabled
            dtype = jax.dtypes.canonicalize_dtype(dtype)
        return jax.ShapeDtypeStruct(leaf.shape, dtype)

    return jtu.tree_map(strip, tree)


def _derive(fun: Function, struct: tuple[PyTree, PyTree], mesh: Mesh) -> Program:
    """Compile `fun(params, batch)` for the structs of both, and read its shardings.

    The inputs are lowered without shardings, so the compiler propagates the constraints
    back to them. An additional input with a sharding, the anchor, sets the mesh:
    without it the derived shardings have no mesh.
    """
    dynamic, static = eqx.partition(struct, is_placeable)
    arrays, structure = jtu.tree_flatten(dynamic)
    others: list[PyTree] = []

    def flat(anchor: Array, *arrays: Array) -> PyTree:
        out = fun(*eqx.combine(jtu.tree_unflatten(structure, arrays), static))
        out, rest = eqx.partition(out, eqx.is_array)
        others[:] = [rest]
        return out

    whole = NamedSharding(mesh, P())
    anchor = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    # Unused inputs are kept: each needs an entry in `input_shardings`.
    traced = jax.jit(flat, keep_unused=True).trace(anchor, *arrays)
    if not any(eqn.primitive.name in _ANNOTATIONS for eqn in equations(traced.jaxpr)):
        warnings.warn(
            "`eqx_pipe.sharding.parallelize`: `fun` has no sharding constraint, so "
            "every device gets a copy of all inputs. Use "
            '`eqx_pipe.sharding.constrain(x, "batch", ...)` in `fun` and give '
            "`rules=`.",
            stacklevel=7,
        )
    compiled = traced.lower().compile()
    derived = compiled.input_shardings[0][1:]
    start: Any = anchor
    if is_there(mesh.devices.flat[0]):
        start = jax.device_put(np.zeros((), np.float32), whole)
    return Program(compiled, jtu.tree_unflatten(structure, derived), others[0], start)


def _like(fun: Callable[..., Any], method: Callable[..., Any]) -> Any:
    """Return a method as a function with the attributes of the user's function."""

    @wraps_function(fun)
    def function(*args: Any, **kwargs: Any) -> PyTree:
        return method(*args, **kwargs)

    return function


def parallelize(
    fun: Function,
    *,
    init_params: Callable[..., PyTree] | None = None,
    get_input_batch: Callable[..., PyTree] | None = None,
    initial_batch: PyTree = None,
    mesh: Mesh | None = None,
    rules: RulesLike | None = None,
) -> tuple[Any, ...]:
    """Run a function of parameters and a batch on all devices of a mesh.

    Constraints inside `fun` set the shardings: `eqx_pipe.sharding.constrain` with
    logical names, `jax.lax.with_sharding_constraint`, or `jax.shard_map`. The compiler
    propagates them back to the inputs, and the parameters and batches are created, or
    placed, with these shardings. `fun` may be a gradient, a whole training step, or a
    scan; the parameters may be an Equinox model.

    **Arguments:**

    - `fun`: a function `fun(params, batch)`.
    - `init_params`: a function of any arguments that returns the parameters. (Keyword
        only.)
    - `get_input_batch`: a function of any arguments that returns a batch, usually on
        the host. Give this or `initial_batch`, or both. (Keyword only.)
    - `initial_batch`: a batch, of which only the shapes and dtypes are used: a
        `jax.ShapeDtypeStruct` may stand for an array. (Keyword only.)
    - `mesh`: a `jax.sharding.Mesh`; by default the mesh of the enclosing `AxisRules.on`
        or `jax.set_mesh`, or else all devices along the first mesh axis of the rules.
        Explicit axes are treated as automatic. (Keyword only.)
    - `rules`: `AxisRules`, or a mapping or pairs for it, for `constrain` in `fun`; by
        default those of the enclosing `AxisRules.on`. (Keyword only.)

    **Returns:** `(fun, init_params, get_input_batch)`, or `(fun, init_params)` without
    `get_input_batch`, each with the arguments of the original. `fun` places its inputs,
    wherever they are; `fun.compiled(params, batch)` returns the compiled program.
    `init_params` is None if it was not given, and otherwise creates each parameter in
    its shards. It needs the shapes of a batch: if they are unknown and
    `get_input_batch` takes no arguments, it calls `get_input_batch`, whose first call
    then returns that batch. Batches fetched before the parameters exist are placed at
    once if `init_params` takes no arguments, otherwise by `fun`.

    **Raises:**

    - `ValueError` if both `get_input_batch` and `initial_batch` are missing; from
      `init_params` if the shapes of a batch are unknown; from JAX if a constraint does
      not divide an array evenly.
    - `TypeError` if something is not a function or not a mesh.

    If `fun` has no constraints, every device gets a copy of all inputs, and a warning
    is logged.

    **Laws:** the outputs of `fun` do not change, up to rounding.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> def loss(w, x):
        ...     return jnp.sum(ep.sharding.constrain(x @ w, "batch", None) ** 2)
        >>> loss, init = ep.sharding.parallelize(
        ...     loss, init_params=lambda key: jax.random.normal(key, (4, 2)),
        ...     initial_batch=jnp.ones((16, 4)), rules={"batch": "data"})
        >>> w = init(jax.random.key(0))
        >>> loss(w, jnp.ones((16, 4))).shape
        ()
    """
    cure = "Give a function of two arguments: `lambda params, batch: ...`."
    check_callable("sharding.parallelize", "fun", fun, cure)
    made_by = {"init_params": init_params, "get_input_batch": get_input_batch}
    for name, function in made_by.items():
        if function is not None:
            cure = "Give a function that returns parameters, or a batch."
            check_callable("sharding.parallelize", name, function, cure)
    if get_input_batch is None and initial_batch is None:
        wrong = "neither `get_input_batch` nor `initial_batch` was given."
        cure = "Give a function that makes batches, or one batch."
        raise value_error("sharding.parallelize", wrong, cure)
    named, around = as_rules(rules), current_rules()
    if around is not None and named is None:
        # Kept, since the returned functions may be called outside the `with` block.
        named, mesh = around[0], around[1] if mesh is None else mesh
    run = _Parallel(fun, init_params, get_input_batch, _mesh_for(mesh, named), named)
    run.batch = None if initial_batch is None else struct_of(initial_batch)
    parallel = _like(fun, run)
    parallel.compiled = lambda params, batch: run.program(params, batch).compiled
    init = None if init_params is None else _like(init_params, run.init_params)
    if get_input_batch is None:
        return parallel, init
    return parallel, init, _like(get_input_batch, run.get_input_batch)


def _needs_nothing(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return True


def _mesh_for(mesh: Mesh | None, rules: AxisRules | None) -> Mesh:
    """Return the mesh with automatic axes, whose shardings the compiler derives."""
    if mesh is None and not jax.sharding.get_abstract_mesh().empty:
        mesh = jax.sharding.get_mesh()
    if mesh is not None:
        check_mesh("sharding.parallelize", mesh)
        return with_types(mesh, AxisType.Auto)
    named = [] if rules is None else [n for _, a in rules.pairs for n in names_of([a])]
    axes = tuple(dict.fromkeys(named)) or ("devices",)
    shape = (len(jax.devices()),) + (1,) * (len(axes) - 1)
    # `jax.make_mesh` makes explicit axes by default.
    return jax.make_mesh(shape, axes, axis_types=(AxisType.Auto,) * len(axes))
