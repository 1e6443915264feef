"""A function and what feeds it, parallel by the constraints inside the function."""

import functools as ft
from collections.abc import Callable, Sequence
from typing import ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

import equinox as eqx
import jax
import jax.tree_util as jtu
from jax.core import Tracer
from jax.sharding import Mesh
from jax.stages import Compiled

from .._check import check_callable
from .._errors import value_error
from .._types import Device, PyTree
from .derive import Function, Plan, mesh_for, struct_of
from .init import compile_maker
from .leaves import draws_by_sharding, is_placeable
from .rules import RulesLike, as_rules, current_rules

InitArgs = ParamSpec("InitArgs")
FeedArgs = ParamSpec("FeedArgs")
Params = TypeVar("Params")
Batch = TypeVar("Batch")
Output = TypeVar("Output")
_Params = TypeVar("_Params", contravariant=True)
_Batch = TypeVar("_Batch", contravariant=True)
_Output = TypeVar("_Output", covariant=True)


@runtime_checkable
class Parallel(Protocol[_Params, _Batch, _Output]):
    """A function on all devices, which knows the programs that it runs."""

    compiled: Callable[[PyTree, PyTree], Compiled]

    def __call__(self, params: _Params, batch: _Batch) -> _Output: ...


def _parallel(plan: Plan, fun: Callable[[Params, Batch], Output]) -> Parallel:
    @ft.wraps(fun)
    def parallel(params: Params, batch: Batch) -> Output:
        leaves = jtu.tree_leaves((params, batch))
        traced = any(isinstance(leaf, Tracer) for leaf in leaves)
        # Under a transformation nothing can be placed: then it is an ordinary function.
        run = plan.jitted if traced else plan.program(params, batch)
        return run(params, batch)

    # Not an object of a class: a function stays one, and keeps its own attributes.
    made = cast(Parallel, parallel)
    made.compiled = lambda params, batch: plan.program(params, batch).compiled
    return made


def _sharded_init(
    plan: Plan, init: Callable[InitArgs, Params]
) -> Callable[InitArgs, Params]:
    @ft.wraps(init)
    def sharded_init(*args: InitArgs.args, **kwargs: InitArgs.kwargs) -> Params:
        plan.params = eqx.filter_eval_shape(init, *args, **kwargs)
        plan.guess_batch()
        shardings = plan.shardings()
        if shardings is None:
            raise value_error(
                "sharding.parallelize",
                "the shapes of a batch are not known yet, and the shardings of the "
                "parameters depend on them.",
                "Call `get_input_batch` once before `init_params`, or give "
                "`initial_batch` instead.",
            )
        # Made in shards they would draw other numbers: made whole, then split.
        if any(map(draws_by_sharding, jtu.tree_leaves((args, kwargs)))):
            return _put(init(*args, **kwargs), shardings[0])
        return compile_maker(init, args, kwargs, shardings[0])()

    return sharded_init


def _feed(plan: Plan, get: Callable[FeedArgs, Batch]) -> Callable[FeedArgs, Batch]:
    """`get_input_batch` with its batches placed, once it is known where."""

    @ft.wraps(get)
    def get_input_batch(*args: FeedArgs.args, **kwargs: FeedArgs.kwargs) -> Batch:
        plain = not args and not kwargs
        batch = plan.ahead.pop() if plain and plan.ahead else get(*args, **kwargs)
        plan.batch = struct_of(batch)
        plan.guess_params()
        shardings = plan.shardings()
        return batch if shardings is None else _put(batch, shardings[1])

    return get_input_batch


def _put(tree: PyTree, shardings: PyTree) -> PyTree:
    arrays, rest = eqx.partition(tree, is_placeable)
    return eqx.combine(jax.device_put(arrays, shardings), rest)


@overload
def parallelize(
    fun: Callable[[Params, Batch], Output],
    *,
    init_params: Callable[InitArgs, Params],
    get_input_batch: Callable[FeedArgs, Batch],
    mesh: Mesh | None = None,
    devices: Sequence[Device] | None = None,
    rules: RulesLike | None = None,
) -> tuple[
    Parallel[Params, Batch, Output],
    Callable[InitArgs, Params],
    Callable[FeedArgs, Batch],
]: ...
@overload
def parallelize(
    fun: Callable[[Params, Batch], Output],
    *,
    init_params: Callable[InitArgs, Params],
    initial_batch: Batch,
    mesh: Mesh | None = None,
    devices: Sequence[Device] | None = None,
    rules: RulesLike | None = None,
) -> tuple[Parallel[Params, Batch, Output], Callable[InitArgs, Params]]: ...
@overload
def parallelize(
    fun: Callable[[Params, Batch], Output],
    *,
    init_params: None = None,
    get_input_batch: Callable[FeedArgs, Batch] | None = None,
    initial_batch: Batch | None = None,
    mesh: Mesh | None = None,
    devices: Sequence[Device] | None = None,
    rules: RulesLike | None = None,
) -> (
    tuple[Parallel[Params, Batch, Output], None]
    | tuple[Parallel[Params, Batch, Output], None, Callable[FeedArgs, Batch]]
): ...
def parallelize(
    fun: Function,
    *,
    init_params: Callable[..., PyTree] | None = None,
    get_input_batch: Callable[..., PyTree] | None = None,
    initial_batch: PyTree = None,
    mesh: Mesh | None = None,
    devices: Sequence[Device] | None = None,
    rules: RulesLike | None = None,
) -> tuple[Callable[..., PyTree] | None, ...]:
    """Makes a function of parameters and a batch run on all devices of a mesh.

    Only `fun` says how things are split, by constraints where it matters:
    `eqx_pipe.sharding.constrain` with logical names,
    `jax.lax.with_sharding_constraint`, or a `shard_map`. The compiler carries them back
    to the inputs, and the parameters and batches are made, or placed, as `fun` wants
    them. `fun` may be a gradient, a whole training step, or a scan; the parameters may
    be an Equinox model.

    **Arguments:**

    - `fun`: a function `fun(params, batch)`.
    - `init_params`: makes the parameters, of any arguments. (Keyword only.)
    - `get_input_batch`: makes a batch, of any arguments, on the host as a rule. Give
        this or `initial_batch`. (Keyword only.)
    - `initial_batch`: a batch, for its shapes. (Keyword only.)
    - `mesh`: a `jax.sharding.Mesh`; by default that of the enclosing `AxisRules.on`, or
        of the first constraint in `fun`, or one of all `devices`, along the first mesh
        axis of the rules. (Keyword only.)
    - `devices`: which devices, where no mesh is given. (Keyword only.)
    - `rules`: `AxisRules`, or what makes them, for the `constrain`s in `fun`; by
        default those of the enclosing `AxisRules.on`. (Keyword only.)

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

    **Laws:** `fun` returns what it did, up to rounding.

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
    check_callable("sharding.parallelize", "fun", fun)
    if init_params is not None:
        check_callable("sharding.parallelize", "init_params", init_params)
    if get_input_batch is not None:
        check_callable("sharding.parallelize", "get_input_batch", get_input_batch)
    if (get_input_batch is None) == (initial_batch is None):
        which = "neither" if initial_batch is None else "both"
        raise value_error(
            "sharding.parallelize",
            f"{which} of `get_input_batch` and `initial_batch` was given.",
            "Give exactly one: a function that makes batches, or one batch.",
        )
    known = as_rules("sharding.parallelize", rules)
    around = current_rules()
    if around is not None and known is None:
        # Kept: what is returned may be called outside of the block.
        known, given = around
        mesh = given if mesh is None and devices is None else mesh
    # With nothing to go by, it is that of a constraint, once `fun` can be traced.
    found = None if mesh is devices is known is None else mesh_for(mesh, devices, known)
    plan = Plan(fun, init_params, get_input_batch, found, known)
    parallel = _parallel(plan, fun)
    init = None if init_params is None else _sharded_init(plan, init_params)
    if get_input_batch is None:
        plan.batch = struct_of(initial_batch)
        return parallel, init
    return parallel, init, _feed(plan, get_input_batch)
