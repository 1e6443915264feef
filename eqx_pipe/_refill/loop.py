"""A primitive that is `lax.while_loop` until its lanes would wait for each other.

Under `jax.vmap`, `lax.while_loop` goes on in all lanes until the last one is finished.
This loop remembers instead that it has a batch of points, through any number of
`vmap`s, and decides only when it is compiled how many of them run at a time
(`lanes.py`). That takes a primitive; `batch.py` and `derivative.py` hold its rules.

`cond` and `body` are jaxprs for a single point, `(*consts, *carry)` being their
arguments. If `size` is not `None`, there are as many points. The carries then have a
leading axis of that size, and constants one that their tiling says how to read. (So
nothing is copied under a `vmap` in a `vmap`.)
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .._jaxprs import (
    Body,
    Entry,
    Equation,
    as_function,
    hoist,
    is_jaxpr,
    register,
    trace,
)
from .._types import ClosedJaxpr
from .lanes import Lanes, Tiling

T = TypeVar("T")

refill_p = Primitive("eqx_pipe_refill")
refill_p.multiple_results = True
# JAX 0.12 asks a primitive with such a jaxpr among its parameters (one that holds
# `jnp.searchsorted`, say) for a rule that lowers it. `_run` evaluates the jaxprs while
# it is traced for a compiled program, and there each equation is lowered by itself.
refill_p.is_high = lambda *_, **__: False  # pyright: ignore[reportAttributeAccessIssue]


class LoopParams(NamedTuple):
    """The parameters of the primitive."""

    cond: ClosedJaxpr
    body: ClosedJaxpr
    num_consts: int
    size: int | None
    tilings: tuple[Tiling, ...]

    def split(self, args: Sequence[T]) -> tuple[list[T], list[T]]:
        """What belongs to constants, and to the carry."""
        return list(args[: self.num_consts]), list(args[self.num_consts :])

    def bind(self, *args: Any) -> list[Any]:
        return refill_p.bind(*args, **self._asdict())


def loop(
    cond: Callable[..., Any],
    body: Callable[..., Sequence[Any]] | ClosedJaxpr,
    consts: Sequence[Any],
    init: Sequence[Any],
    size: int | None = None,
    tilings: Sequence[Tiling] | None = None,
) -> list[Any]:
    """Runs `carry = body(*consts, *carry)` from `init` on, as long as `cond` holds.

    `cond` and `body` are functions for a single point that may close over arrays;
    `body` may be traced already.
    """
    tilings = tuple([None] * len(consts) if tilings is None else tilings)
    examples = [of_one(x, t is not None) for x, t in zip(consts, tilings, strict=True)]
    examples += [of_one(x, size is not None) for x in init]
    functions: Any = cond, body
    traced = [f if is_jaxpr(f) else trace(f, *examples) for f in functions]
    closed: list[Any] = []
    # The rules of the primitive see operands only, never what its jaxprs close over.
    if any(each.consts for each in traced):
        closed, traced = hoist(traced, examples, struct)
    num_consts = len(closed) + len(consts)
    tilings = (None,) * len(closed) + tilings
    return LoopParams(traced[0], traced[1], num_consts, size, tilings).bind(
        *closed, *consts, *init
    )


def struct(x: Any) -> jax.ShapeDtypeStruct:
    """The type of an array, or of a number that JAX has left as it was."""
    aval = x if hasattr(x, "dtype") else jax.typeof(x)
    weak = bool(getattr(aval, "weak_type", False))
    return jax.ShapeDtypeStruct(jnp.shape(x), aval.dtype, weak_type=weak)


def of_one(x: Any, batched: bool) -> jax.ShapeDtypeStruct:
    """The type of an array for one point."""
    whole = struct(x)
    return whole.update(shape=whole.shape[1:]) if batched else whole


def run_alone(
    cond: ClosedJaxpr, body: ClosedJaxpr, consts: Sequence[Any], init: Sequence[Any]
) -> list[Any]:
    """The loop of a single point."""
    test, step = as_function(cond), as_function(body)
    return lax.while_loop(
        lambda carry: test(*consts, *carry)[0],
        lambda carry: step(*consts, *carry),
        list(init),
    )


def _run(*args: Any, **params: Any) -> list[Any]:
    p = LoopParams(**params)
    consts, init = p.split(args)
    if p.size is None:
        return run_alone(p.cond, p.body, consts, init)
    if p.size == 0:
        return init
    return Lanes(p.cond, p.body, consts, p.size, p.tilings).run(init)


@refill_p.def_effectful_abstract_eval
def _abstract(*args: Any, **params: Any) -> Any:
    p = LoopParams(**params)
    return p.split(args)[1], frozenset(p.cond.effects) | frozenset(p.body.effects)


@refill_p.def_impl
def _evaluate(*args: Any, **params: Any) -> list[Any]:
    # Called eagerly it would otherwise run operation by operation.
    return jax.jit(lambda *args: _run(*args, **params))(*args)


mlir.register_lowering(refill_p, mlir.lower_fun(_run, multiple_results=True))


def _remake(eqn: Equation, bodies: list[Body], inputs: list[Any]) -> list[Any]:
    p, (cond, body) = LoopParams(**eqn.params), bodies
    return loop(cond, body, *p.split(inputs), p.size, p.tilings)


register(
    refill_p.name,
    Entry(
        "while",
        ("cond", "body"),
        remake=_remake,
        # Whether it is batched as one loop or lane by lane is known only to `batch.py`.
        flow=lambda flow, eqn, _: flow.opaque(eqn),
    ),
)
