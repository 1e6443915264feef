"""A primitive that is `lax.while_loop` until its lanes would wait for each other.

Under `jax.vmap`, `lax.while_loop` goes on in all lanes until the last one is finished.
This loop remembers instead that it has a batch of points, through any number of
`vmap`s, and decides only when it is compiled how many of them run at a time
(`lanes.py`). That takes a primitive; `batch.py` and `derivative.py` hold its rules.

`cond` and `body` are jaxprs for a single point, `(*consts, *carry)` being their
arguments. If `size` is not `None`, there are as many points. The carries then have a
leading axis of that size, and so may constants: point i sees entry
`i // divisor % modulus` of those with `spread = (divisor, modulus)`, and all see the
same of those with `None`. (So nothing is copied under a `vmap` in a `vmap`.)
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .._jaxprs.evaluate import Body
from .._jaxprs.jaxpr import Equation, as_function, hoist, is_jaxpr, trace
from .._jaxprs.table import TABLE, Entry
from .._types import ClosedJaxpr
from .lanes import run_in_lanes

refill_p = Primitive("eqx_pipe_refill")
refill_p.multiple_results = True

Spread = tuple[int, int] | None


def loop(
    cond: Callable[..., Any],
    body: Callable[..., Sequence[Any]] | ClosedJaxpr,
    consts: Sequence[Any],
    init: Sequence[Any],
    size: int | None = None,
    spread: Sequence[Spread] | None = None,
) -> list[Any]:
    """Runs `carry = body(*consts, *carry)` from `init` on, as long as `cond` holds.

    `cond` and `body` are functions for a single point that may close over arrays;
    `body` may be traced already.
    """
    spread = tuple([None] * len(consts) if spread is None else spread)
    lanes = [of_one(x, s is not None) for x, s in zip(consts, spread, strict=True)]
    examples = [*lanes, *(of_one(x, size is not None) for x in init)]
    functions: Any = cond, body
    traced = [f if is_jaxpr(f) else trace(f, *examples) for f in functions]
    closed: list[Any] = []
    if any(each.consts for each in traced):
        closed, traced = hoist(traced, examples, struct)
    return refill_p.bind(
        *closed,
        *consts,
        *init,
        cond=traced[0],
        body=traced[1],
        num_consts=len(closed) + len(consts),
        size=size,
        spread=(None,) * len(closed) + spread,
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


def _run(
    *args: Any,
    cond: ClosedJaxpr,
    body: ClosedJaxpr,
    num_consts: int,
    size: int | None,
    spread: Sequence[Spread],
) -> list[Any]:
    consts, init = args[:num_consts], args[num_consts:]
    if size is None:
        return run_alone(cond, body, consts, init)
    if size == 0:
        return list(init)
    return run_in_lanes(cond, body, consts, init, size, spread)


@refill_p.def_effectful_abstract_eval
def _abstract(
    *args: Any, cond: ClosedJaxpr, body: ClosedJaxpr, num_consts: int, **_: Any
) -> Any:
    return list(args[num_consts:]), frozenset(cond.effects) | frozenset(body.effects)


@refill_p.def_impl
def _evaluate(*args: Any, **params: Any) -> list[Any]:
    return jax.jit(lambda *args: _run(*args, **params))(*args)


mlir.register_lowering(refill_p, mlir.lower_fun(_run, multiple_results=True))


def _remake(eqn: Equation, bodies: list[Body], inputs: list[Any]) -> list[Any]:
    params, num_consts = eqn.params, eqn.params["num_consts"]
    consts, init = inputs[:num_consts], inputs[num_consts:]
    cond, body = bodies
    return loop(cond, body, consts, init, params["size"], params["spread"])


TABLE[refill_p.name] = Entry(
    "while",
    ("cond", "body"),
    remake=_remake,
    # Whether it is batched as one loop or lane by lane is known only to `batch.py`.
    flow=lambda flow, eqn, _: flow.opaque(eqn),
)
