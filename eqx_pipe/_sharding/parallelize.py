"""A function and what feeds it, parallel by the constraints inside the function."""

import contextlib
import functools as ft
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast, runtime_checkable

import equinox as eqx
import jax
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh

from .._check import check_callable
from .._errors import message
from .._tree import is_key_array
from .._types import PyTree
from .constrain import axis_rules, current_rules
from .derive import Program, derive, identity_of, mesh_inside, struct_of
from .mesh import check_mesh, names_of, with_types
from .rules import AxisRules, as_rules


class _Plan:
    """What the returned functions share: the programs, and the structs seen so far.

    It is a cache: everything in it can be computed again.
    """

    def __init__(self, fun: Any, mesh: Mesh | None, rules: AxisRules | None):
        self.mesh, self.rules = mesh, rules
        self.params: PyTree | None = None
        self.batch: PyTree | None = None
        self.programs: dict[Any, Program] = {}

        def under_rules(params: PyTree, batch: PyTree) -> PyTree:
            with self.context():
                return fun(params, batch)

        self.fun = under_rules
        self.jitted = eqx.filter_jit(under_rules)

    def context(self) -> Any:
        if self.rules is None or self.mesh is None:
            return contextlib.nullcontext()
        return axis_rules(self.rules, self.mesh)

    def program(self, params: PyTree, batch: PyTree) -> Program:
        struct = struct_of((params, batch))
        known = identity_of(struct)
        if self.mesh is None:
            self.mesh = _mesh(mesh_inside(self.fun, struct), None, None)
        if known not in self.programs:
            self.programs[known] = derive(self.fun, struct, self.mesh)
        return self.programs[known]

    def places(self, which: int) -> PyTree | None:
        """The shardings of the parameters (0) or the batch (1), if both are known."""
        if self.params is None or self.batch is None:
            return None
        program = self.program(self.params, self.batch)
        return jtu.tree_unflatten(program.structure, program.shardings)[which]


@runtime_checkable
class _Parallel(Protocol):
    """A function on all devices, which knows the programs that it runs."""

    compiled: Callable[[PyTree, PyTree], Any]

    def __call__(self, params: PyTree, batch: PyTree) -> PyTree: ...


def _parallel(plan: _Plan, fun: Any) -> _Parallel:
    @ft.wraps(fun)
    def parallel(params, batch):
        leaves = jtu.tree_leaves((params, batch))
        if any(isinstance(leaf, Tracer) for leaf in leaves):
            return plan.jitted(params, batch)
        return plan.program(params, batch)((params, batch))

    # Not an object of a class: a function stays one, and keeps its own attributes.
    made = cast(_Parallel, parallel)
    made.compiled = lambda params, batch: plan.program(params, batch).compiled
    return made


def _sharded_init(plan: _Plan, init: Any, guess: Callable[[], None]) -> Any:
    @ft.wraps(init)
    def sharded_init(*args, **kwargs):
        plan.params = eqx.filter_eval_shape(init, *args, **kwargs)
        guess()
        places = plan.places(0)
        if places is None:
            raise ValueError(
                message(
                    "parallelize",
                    "the shapes of a batch are not known yet, and the shardings of the "
                    "parameters depend on them.",
                    "Call `get_input_batch` once before `init_params`, or give "
                    "`initial_batch` instead.",
                )
            )
        if any(_depends_on_sharding(leaf) for leaf in jtu.tree_leaves((args, kwargs))):
            return _placed(init(*args, **kwargs), places)
        dynamic, static = eqx.partition((args, kwargs), eqx.is_array)

        def make(dynamic):
            args, kwargs = eqx.combine(dynamic, static)
            return eqx.filter(_with_arrays(init(*args, **kwargs)), eqx.is_array)

        arrays = jax.jit(make, out_shardings=places)(dynamic)
        is_struct = jtu.tree_map(
            lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct | np.ndarray),
            plan.params,
        )
        return eqx.combine(arrays, eqx.filter(plan.params, is_struct, inverse=True))

    return sharded_init


def _with_arrays(tree: PyTree) -> PyTree:
    return jtu.tree_map(
        lambda leaf: jax.numpy.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf,
        tree,
    )


def _depends_on_sharding(leaf: Any) -> bool:
    return is_key_array(leaf) and "rbg" in str(jr.key_impl(leaf))


def _placed(tree: PyTree, places: PyTree) -> PyTree:
    return jtu.tree_map(
        lambda leaf, place: leaf if place is None else jax.device_put(leaf, place),
        tree,
        places,
        is_leaf=lambda leaf: leaf is None,
    )


class _Feed:
    """`get_input_batch` with its batches placed, once it is known where."""

    def __init__(self, plan: _Plan, get: Any, guess: Callable[[], None]):
        self.plan, self.get, self.guess = plan, get, guess
        self.ahead: list[PyTree] = []

    def look_ahead(self) -> None:
        """Learns the shapes of a batch before one was asked for, if that can be.

        A function without arguments is called, and the batch kept for the first call;
        it may be an iterator's `next`.
        """
        if self.plan.batch is not None:
            return
        if not _required(self.get):
            self.ahead.append(self.get())
            self.plan.batch = struct_of(self.ahead[0])
        else:
            self.plan.batch = _try(self.get, (0, jr.key(0)))

    def __call__(self, *args: Any, **kwargs: Any) -> PyTree:
        plain = not args and not kwargs
        batch = self.ahead.pop() if plain and self.ahead else self.get(*args, **kwargs)
        self.plan.batch = struct_of(batch)
        self.guess()
        places = self.plan.places(1)
        return batch if places is None else _placed(batch, places)


def _required(fn: Any) -> list[str]:
    """The parameters of a function without which it cannot be called."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return []
    variadic = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [
        p.name
        for p in parameters
        if p.default is inspect.Parameter.empty and p.kind not in variadic
    ]


def _try(fn: Any, candidates: Sequence[Any]) -> PyTree | None:
    """The struct of what `fn` returns for the first candidate that it takes."""
    if len(_required(fn)) > 1:
        return None
    for candidate in candidates:
        try:
            return struct_of(eqx.filter_eval_shape(fn, candidate))
        except Exception:  # a guess that does not fit may fail in any way
            continue
    return None


def parallelize(
    fun: Callable[[PyTree, PyTree], PyTree],
    *,
    init_params: Callable[..., PyTree] | None = None,
    get_input_batch: Callable[..., PyTree] | None = None,
    initial_batch: PyTree = None,
    mesh: Mesh | None = None,
    devices: Sequence[Any] | None = None,
    rules: Any = None,
) -> tuple[Any, ...]:
    """Makes a function of parameters and a batch run on all devices of a mesh.

    Only `fun` says how things are split, by constraints where it matters:
    `eqx_pipe.constrain` with logical names, `jax.lax.with_sharding_constraint`, or a
    `shard_map`. The compiler carries them back to the inputs, and the parameters and
    batches are made, or placed, as `fun` wants them. `fun` may be a gradient, a whole
    training step, or a scan; the parameters may be an Equinox model.

    **Arguments:**

    - `fun`: a function `fun(params, batch)`.
    - `init_params`: makes the parameters, of any arguments. (Keyword only.)
    - `get_input_batch`: makes a batch, of any arguments, on the host as a rule. Give
        this or `initial_batch`. (Keyword only.)
    - `initial_batch`: a batch, for its shapes. (Keyword only.)
    - `mesh`: a `jax.sharding.Mesh`; by default that of the `axis_rules` around, or of
        the first constraint in `fun`, or one of all `devices`, along the first mesh
        axis of the rules. (Keyword only.)
    - `devices`: which devices, where no mesh is given. (Keyword only.)
    - `rules`: `AxisRules`, or what makes them, for the `constrain`s in `fun`; by
        default those of the `axis_rules` around. (Keyword only.)

    **Returns:** `(fun, init_params, get_input_batch)`, or `(fun, init_params)` with
    `initial_batch`, each with its own arguments. `fun` takes inputs wherever they are
    and places them; it has `fun.compiled(params, batch)`, the compiled program.
    `init_params` makes each parameter in its shards. For that it must know the shapes
    of a batch: before the first, `get_input_batch` is called if it takes no arguments
    (the first call then gives that batch), or traced with 0 or a key as its argument.

    **Raises:**

    - `ValueError` unless exactly one of `get_input_batch` and `initial_batch` is given;
      if both `mesh` and `devices` are; from `init_params` if no batch is known.
    - `TypeError` if something is not a function or no mesh.

    If nothing in `fun` is constrained, inputs are copied to every device, with a
    warning. A sharding that does not divide an array is left out for this array.

    **Laws:** `fun` returns what it did.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> def loss(w, x):
        ...     return jnp.sum(ep.constrain(x @ w, "batch", None) ** 2)
        >>> loss, init = ep.parallelize(
        ...     loss, init_params=lambda key: jax.random.normal(key, (4, 2)),
        ...     initial_batch=jnp.ones((16, 4)), rules={"batch": "data"})
        >>> w = init(jax.random.key(0))
        >>> loss(w, jnp.ones((16, 4))).shape
        ()
    """
    check_callable("parallelize", "fun", fun)
    for name, value in (
        ("init_params", init_params),
        ("get_input_batch", get_input_batch),
    ):
        if value is not None:
            check_callable("parallelize", name, value)
    if (get_input_batch is None) == (initial_batch is None):
        which = "neither" if initial_batch is None else "both"
        raise ValueError(
            message(
                "parallelize",
                f"{which} of `get_input_batch` and `initial_batch` was given.",
                "Give exactly one: a function that makes batches, or one batch.",
            )
        )
    known = as_rules("parallelize", rules)
    around = current_rules()
    if around is not None and known is None:
        # Kept: what is returned may be called outside of the block.
        known, given = around
        mesh = given if mesh is None and devices is None else mesh
    found = None if mesh is devices is known is None else _mesh(mesh, devices, known)
    plan = _Plan(fun, found, known)

    def guess_params() -> None:
        if plan.params is None and init_params is not None:
            plan.params = _try(init_params, (jr.key(0),))

    parallel = _parallel(plan, fun)
    if get_input_batch is None:
        plan.batch = struct_of(initial_batch)
        feed, look_ahead = None, lambda: None
    else:
        feed = _Feed(plan, get_input_batch, guess_params)
        look_ahead = feed.look_ahead
    init = None
    if init_params is not None:
        init = _sharded_init(plan, init_params, look_ahead)
    return (parallel, init) if feed is None else (parallel, init, feed)


def _mesh(mesh: Any, devices: Any, rules: AxisRules | None) -> Mesh:
    """The mesh with automatic axes, whose shardings the compiler derives."""
    if mesh is not None and devices is not None:
        raise ValueError(
            message(
                "parallelize",
                "both `mesh` and `devices` were given.",
                "Give the mesh alone; it has its devices.",
            )
        )
    if mesh is not None:
        check_mesh("parallelize", mesh)
        return with_types(mesh, AxisType.Auto)
    held = np.array(jax.devices() if devices is None else devices)
    if held.ndim != 1 or not all(isinstance(d, jax.Device) for d in held):
        raise TypeError(
            message(
                "parallelize",
                f"`devices` is {devices!r}.",
                "Give a list of devices: `jax.devices()[:4]`.",
            )
        )
    named = [] if rules is None else [n for _, a in rules.pairs for n in names_of([a])]
    axes = tuple(dict.fromkeys(named)) or ("devices",)
    shape = (held.size,) + (1,) * (len(axes) - 1)
    return Mesh(held.reshape(shape), axes, axis_types=(AxisType.Auto,) * len(axes))
