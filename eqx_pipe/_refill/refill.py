"""`refill`: loops whose finished lanes take the next point under `vmap`.

Under `jax.vmap`, `lax.while_loop` runs in all lanes until the last one is finished. The
loop here instead records its batch of points, and decides when it is compiled how many
of them run at a time. This requires a primitive, which replaces each `while_loop` of a
traced function.

Its parameters are those of the equation of a `lax.while_loop` of a single point, the
`size` of its batch, and the marks of the constants that have a leading axis over the
batch, as the carries have. Another `vmap` runs several such loops side by side.

Derivatives are those of the function as it is, whose lanes wait.
"""

import functools as ft
import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.key_reuse._core import key_reuse_signatures
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir
from jaxtyping import Array, Bool, Int32

from .._captured import named
from .._check import check_callable
from .._errors import value_error
from .._jaxprs import (
    Body,
    Entry,
    Equation,
    alone,
    as_function,
    by_jaxpr,
    effects,
    interpret,
    kind,
    may_loop_or_call_back,
    open_jaxpr,
    rebind,
    register,
    sub_jaxprs,
    trace,
)
from .._tree import as_data, as_keys, broadcast_mask
from .._types import ClosedJaxpr, PyTree

_Output = TypeVar("_Output")


def refill(fn: Callable[..., _Output]) -> Callable[..., _Output]:
    """Return a function with the same values, in whose loops no lane waits for others.

    Under `jax.vmap`, a `while_loop` runs in every lane until the slowest point of the
    batch is finished. Here a lane whose point is finished takes the next point of the
    batch, so points may take different numbers of steps, in any order. This pays off
    for batches of thousands, which `sweep` uses with `batch_size="auto"`.

    **Arguments:**

    - `fn`: a function with a `while_loop` that is not inside of another loop, a branch
      or a `vmap`. The loop may be in a library, such as a solver.

    **Returns:** a function with the signature of `fn`. It is traced in each call, like
    a function under `jax.jit`. Its derivatives are those of `fn`, whose lanes wait.

    **Raises:**

    - `TypeError` if `fn` cannot be called.
    - `ValueError`, when called, if `fn` has no such loop.

    Work before and after a loop runs for the whole batch at once, and the carries of
    the whole batch are in memory. A step that contains another `while_loop` still waits
    for the slowest of the lanes that take it, so gains are small: see `order_by` of
    `sweep`. Loops cannot use the batch's axis by name (`jax.lax.psum`), since not all
    points of the batch take a step together.

    **Laws:** each lane equals `fn` of its point, to rounding, under any `vmap`s. XLA
    compiles the steps in another context than those of `fn`, and rounds otherwise: the
    number of steps of a chaotic or tolerance-controlled loop may differ.

    !!! example

        >>> import eqx_pipe as ep, jax, jax.numpy as jnp
        >>> def collatz(n):
        ...     step = lambda n: jnp.where(n % 2, 3 * n + 1, n // 2)
        ...     count = lambda c: (step(c[0]), c[1] + 1)
        ...     return jax.lax.while_loop(lambda c: c[0] > 1, count, (n, 0))[1]
        >>> ep.sweep(ep.refill(collatz), ep.Values([1, 7, 27, 97])).values.tolist()
        [0, 16, 111, 118]
    """
    cure = "Give a function with a `while_loop`: `refill(fn)`."
    check_callable("refill", "fn", fn, cure)

    def run(*args: Any, **kwargs: Any) -> _Output:
        if jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
            return fn(*args, **kwargs)  # Python loops: a debugger stops inside
        return by_jaxpr(_evaluate_refilled, fn, args, kwargs)

    # Not by `functools.wraps`, which would add the fields of a Module to the function.
    ft.update_wrapper(run, named(fn), updated=())
    vars(run)["__wrapped__"] = fn
    return run


def _evaluate_refilled(jaxpr: ClosedJaxpr, args: list[Any]) -> list[Any]:
    """Return the outputs of a jaxpr with refilled loops, and derivatives without.

    Raises a `ValueError` if it has no loop to refill.
    """
    if not any(map(_is_loop, open_jaxpr(jaxpr)[0].eqns)):
        raise value_error(
            "refill",
            "`fn` has no `while_loop` outside of other loops, branches and `vmap`.",
            "Sweep `fn` itself, or refill the function that has the loop.",
        )

    def plain(consts: list[Any], args: list[Any]) -> list[Any]:
        return as_function(jaxpr, consts)(*args)

    @jax.custom_jvp
    def refilled(consts: list[Any], args: list[Any]) -> list[Any]:
        return interpret(jaxpr, args, _rule, consts=consts)

    refilled.defjvp(lambda primals, tangents: jax.jvp(plain, primals, tangents))
    return refilled(list(jaxpr.consts), args)


def _is_loop(eqn: Equation) -> bool:
    """Return whether an equation is a `while_loop` of one point, or calls one."""
    if kind(eqn) == "call":
        return any(map(_is_loop, open_jaxpr(next(sub_jaxprs(eqn)))[0].eqns))
    if eqn.primitive.name == "while":
        # A loop under `vmap` has a condition for each lane.
        return not open_jaxpr(eqn.params["cond_jaxpr"])[0].outvars[0].aval.shape
    return eqn.primitive is refill_p


def _rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
    """Return the outputs of an equation, with refilled loops."""
    if not _is_loop(eqn) or eqn.primitive is refill_p:
        return rebind(eqn, inputs)
    if kind(eqn) == "call":
        return interpret(next(sub_jaxprs(eqn)), inputs, _rule)
    params = {name: eqn.params[name] for name in Loop._fields[:4]}
    params["cond_jaxpr"] = alone(params["cond_jaxpr"])
    num_consts = params["cond_nconsts"] + params["body_nconsts"]
    with eqn.ctx.manager:
        return Loop(**params, own=(False,) * num_consts).bind(*inputs)


refill_p = Primitive("eqx_pipe_refill")
refill_p.multiple_results = True
# JAX 0.12 requires a lowering rule for primitives whose parameters contain such a jaxpr
# (one with `jnp.searchsorted`, for example). `_run` evaluates the jaxprs while it is
# traced for a compiled program, where each equation is lowered by itself.
refill_p.is_high = lambda *_, **__: False  # pyright: ignore[reportAttributeAccessIssue]


class Loop(NamedTuple):
    """The parameters of the primitive."""

    cond_jaxpr: ClosedJaxpr
    body_jaxpr: ClosedJaxpr
    cond_nconsts: int
    body_nconsts: int
    own: tuple[bool, ...]
    size: int | None = None

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the constants and the carry."""
        num_consts = len(self.own)
        return list(args[:num_consts]), list(args[num_consts:])

    def bind(self, *args: Any) -> list[Any]:
        return refill_p.bind(*args, **self._asdict())

    def functions(self, *bodies: Callable[..., Any]) -> tuple[Callable[..., Any], ...]:
        """Return functions of the constants and the carry of a point.

        They return whether the loop continues, and the next carry. `bodies` replace
        the two jaxprs.
        """
        of = bodies or (as_function(self.cond_jaxpr), as_function(self.body_jaxpr))
        count = self.cond_nconsts
        return (
            lambda consts, carry: of[0](*consts[:count], *carry)[0],
            lambda consts, carry: of[1](*consts[count:], *carry),
        )

    def of_point(self, *args: Any, bodies: Sequence[Callable[..., Any]] = ()) -> Any:
        """Run the loop of one point from its constants and its first carry."""
        consts, init = self.split(args)
        test, step = self.functions(*bodies)
        return lax.while_loop(ft.partial(test, consts), ft.partial(step, consts), init)


def refilled(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function of arrays with a refilled loop in place of its `while_loop`."""
    return interpret(trace(function, *args), args, _rule)


def _run(*args: Any, on_gpu: bool = False, **params: Any) -> list[Any]:
    loop = Loop(**params)
    if loop.size is None:
        return loop.of_point(*args)
    consts, init = loop.split(args)
    return Lanes(loop, consts, on_gpu).run(init) if loop.size else init


@refill_p.def_effectful_abstract_eval
def _abstract(*args: Any, **params: Any) -> Any:
    loop = Loop(**params)
    both = loop.cond_jaxpr, loop.body_jaxpr
    return loop.split(args)[1], frozenset(it.chain(*map(effects, both)))


@refill_p.def_impl
def _evaluate(*args: Any, **params: Any) -> list[Any]:
    # Without `jit`, an eager call would run operation by operation.
    return jax.jit(lambda *args: _run(*args, **params))(*args)


mlir.register_lowering(refill_p, mlir.lower_fun(_run, multiple_results=True))
_run_on_gpu = mlir.lower_fun(ft.partial(_run, on_gpu=True), multiple_results=True)
mlir.register_lowering(refill_p, _run_on_gpu, platform="gpu")


def _remake(eqn: Equation, bodies: list[Body], inputs: list[Any]) -> list[Any]:
    loop = Loop(**eqn.params)
    of_point = ft.partial(loop.of_point, bodies=bodies)
    run = ft.partial(refilled, of_point)
    if loop.size is None:
        return run(*inputs)
    marks = [*loop.own, *[True] * (len(inputs) - len(loop.own))]
    return jax.vmap(run, [0 if mine else None for mine in marks])(*inputs)


register(
    refill_p.name,
    Entry(
        "while",
        ("cond_jaxpr", "body_jaxpr"),
        remake=_remake,
        # Only `_batch` knows whether it is batched as one loop or lane by lane.
        flow=lambda flow, eqn, _: flow.opaque(eqn),
    ),
)


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    loop, batched = Loop(**params), [dim is not None for dim in dims]
    if loop.size is not None:
        run = ft.partial(_run, **params)
        out = jax.vmap(run, list(dims), axis_size=axis_data.size)(*args)
        return out, [0] * len(out)
    args = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    (own, of_init), (consts, init) = loop.split(batched), loop.split(args)
    carry = [
        x if b else jnp.broadcast_to(x, (axis_data.size, *jnp.shape(x)))
        for x, b in zip(init, of_init, strict=True)
    ]
    loop = loop._replace(own=tuple(own), size=axis_data.size)
    return loop.bind(*consts, *carry), [0] * len(carry)


batching.fancy_primitive_batchers[refill_p] = _batch
key_reuse_signatures[refill_p] = key_reuse_signatures[lax.while_p]


# Loops of different length in few lanes: a lane runs the loop of one point. When a
# quarter of the lanes have finished, their results are stored and they get the next
# points. Each point takes the same steps as alone, so its value is the same.
#
# The number of lanes, the number of steps between checks, and the condition for a
# refill were chosen together on CPU, for trip counts from 1 to 1000: each step has a
# fixed cost, but fewer lanes leave fewer idle.

# More lanes and steps than 512 and 8 contributed to a speed-up of 1.1 to 1.6 times.
_MOST_LANES = 1024
_STEPS = 16
_LEAST_LANES = 64
# At the end lanes find no more points, which matters if there are few points per lane.
_POINTS_PER_LANE = 32
_LANE_BYTES = 128 * 1024  # they stay in a cache
# One in `_IDLE` lanes must be idle before a refill, which moves values of all lanes.
_IDLE = 4


def num_lanes(size: int, carry_bytes: int, on_gpu: bool) -> int:
    """Return the number of lanes for `size` points.

    On a GPU a step takes about equally long for any number of lanes (not measured).
    """
    room = _LANE_BYTES // max(1, carry_bytes)
    most = size if on_gpu else min(_MOST_LANES, room)
    wanted = min(most, size // _POINTS_PER_LANE)
    return min(size, max(_LEAST_LANES, wanted))


class Lanes:
    """The constant parts of the loops of many points.

    Constants that all lanes share are `None` among the lanes' own constants.
    """

    def __init__(self, loop: Loop, consts: Sequence[Array], on_gpu: bool):
        self.size, self.consts, self.on_gpu = loop.size or 0, consts, on_gpu
        self.own = loop.own
        self.test, self.step = map(self._over_lanes, loop.functions())
        # A body that may raise or loop must not run for a point after its end.
        self.guarded = may_loop_or_call_back(loop.body_jaxpr)

    def _over_lanes(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def one(lane_consts: list[Any], carry: list[Any]) -> Any:
            pairs = zip(self.consts, lane_consts, strict=True)
            return run([x if mine is None else mine for x, mine in pairs], carry)

        return jax.vmap(one)

    def run(self, results: list[Any]) -> list[Any]:
        """Return the final carries; `results` contains the first carries."""
        # PRNG keys cannot be scattered into a buffer; their data can.
        carry_bytes = sum(x.nbytes // self.size for x in map(as_data, results))
        lanes = num_lanes(self.size, carry_bytes, self.on_gpu)
        point = jnp.arange(lanes, dtype=jnp.int32)
        lane_consts, carry = self._load(point), _take(results, point)
        alive = self.test(lane_consts, carry)
        # `point == size` means that no point was left for this lane.
        start = (
            jnp.int32(lanes),
            point,
            lane_consts,
            carry,
            alive,
            [*map(as_data, results)],
        )

        def turn(state: Any) -> Any:
            following, point, lane_consts, carry, alive, stored = state
            carry, alive = self._advance(following, point, lane_consts, carry, alive)
            ended = ~alive
            # Lanes still running write out of bounds, which has no effect.
            into = jnp.where(ended, point, self.size)
            stored = [
                x.at[into].set(as_data(c), mode="drop")
                for x, c in zip(stored, carry, strict=True)
            ]
            # Lanes that ended take the next points in order, each a different one.
            number = jnp.cumsum(ended, dtype=jnp.int32)
            fresh = jnp.minimum(following + number - 1, self.size)
            point = jnp.where(ended, fresh, point)
            lane_consts = _select(ended, self._load(point), lane_consts)
            first = [as_keys(d, x) for d, x in zip(stored, results, strict=True)]
            carry = _select(ended, _take(first, point), carry)
            alive = (point < self.size) & self.test(lane_consts, carry)
            following = jnp.minimum(following + number[-1], self.size)
            return following, point, lane_consts, carry, alive, stored

        end = lax.while_loop(lambda s: jnp.any(s[1] < self.size), turn, start)
        return [as_keys(d, x) for d, x in zip(end[-1], results, strict=True)]

    def _advance(
        self,
        following: Int32[Array, ""],
        point: Int32[Array, " lanes"],
        lane_consts: list[Any],
        carry: list[Any],
        alive: Bool[Array, " lanes"],
    ) -> tuple[list[Any], Bool[Array, " lanes"]]:
        """Step until enough lanes have ended, or all of them if no point is left."""
        lanes = len(point)
        busy = jnp.sum(point < self.size, dtype=jnp.int32)
        few = jnp.where(following < self.size, busy - max(1, lanes // _IDLE), 0)

        def masked(_: Any, now: Any) -> Any:
            # Test first: the rest of a step only reads `alive`, so XLA makes no copy. A
            # lane that ends with the last step is found later.
            carry, alive = now
            alive = alive & self.test(lane_consts, carry)
            return _select(alive, self.step(lane_consts, carry), carry), alive

        def guarded(now: Any) -> Any:
            carry, alive = now
            # A lane is alive, since the loop would otherwise have ended.
            spare = jnp.argmax(alive)
            others = jax.tree.map(
                lambda x: jnp.broadcast_to(x[spare], x.shape), (lane_consts, carry)
            )
            inputs = _select(alive, (lane_consts, carry), others)
            carry = _select(alive, self.step(*inputs), carry)
            return carry, alive & self.test(lane_consts, carry)

        def unguarded(now: Any) -> Any:
            # Take several steps per check, since a check sums over all lanes.
            return lax.fori_loop(0, _STEPS, masked, now)

        return lax.while_loop(
            lambda now: jnp.sum(now[1], dtype=jnp.int32) > jnp.maximum(few, 0),
            guarded if self.guarded else unguarded,
            (carry, alive),
        )

    def _load(self, point: Int32[Array, " lanes"]) -> list[Any]:
        """Return the lanes' own constants."""
        pairs = zip(self.consts, self.own, strict=True)
        return [x.at[point].get(mode="clip") if mine else None for x, mine in pairs]


def _take(arrays: list[Any], point: Int32[Array, " lanes"]) -> list[Any]:
    return [x.at[point].get(mode="clip") for x in arrays]


def _select(mask: Bool[Array, " lanes"], new: PyTree, old: PyTree) -> PyTree:
    return jax.tree.map(
        lambda n, o: lax.select(broadcast_mask(mask, n), n, o), new, old
    )
