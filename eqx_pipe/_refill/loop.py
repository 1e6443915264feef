"""A primitive that is `lax.while_loop` unless its lanes would wait for each other.

Under `jax.vmap`, `lax.while_loop` runs in all lanes until the last one is finished.
This loop instead records its batch of points, through any number of `vmap`s, and
decides when it is compiled how many of them run at a time (`lanes.py`). This requires a
primitive.

Its parameters are those of the equation of a `lax.while_loop` of a single point, and
the `sizes` of its batches, the outermost first. The carries have a leading axis for
each batch; `axes` marks which of these axes each constant has, so that nested `vmap`s
copy nothing.

A `vmap` adds to the points of the loop. If all points take the same number of steps
there is nothing to refill, and it stays the loop of a single point, with a batch in its
carry. The derivative is that of the `lax.while_loop`, in forward mode.
"""

import itertools as it
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from .._jaxprs import (
    Body,
    Entry,
    Equation,
    as_function,
    depends_on,
    interpret,
    rebind,
    register,
    trace,
)
from .._tree import fill
from .._types import ClosedJaxpr
from .lanes import Lanes

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
    axes: tuple[tuple[bool, ...], ...]
    sizes: tuple[int, ...] = ()

    @property
    def num_points(self) -> int:
        """The number of points in all batches."""
        return math.prod(self.sizes)

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return the constants and the carry."""
        num_consts = len(self.axes)
        return list(args[:num_consts]), list(args[num_consts:])

    def axes_of(self, args: Sequence[Any]) -> list[tuple[bool, ...]]:
        """Return which batch axes each constant and each carry has."""
        carries = len(args) - len(self.axes)
        return [*self.axes, *[(True,) * len(self.sizes)] * carries]

    def bind(self, *args: Any) -> list[Any]:
        return refill_p.bind(*args, **self._asdict())

    def test(self, consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        """Return whether the loop of a point continues."""
        return as_function(self.cond_jaxpr)(*consts[: self.cond_nconsts], *carry)[0]

    def step(self, consts: Sequence[Any], carry: Sequence[Any]) -> list[Any]:
        """Return the next carry of a point."""
        return as_function(self.body_jaxpr)(*consts[self.cond_nconsts :], *carry)

    def of_point(self, *args: Any) -> list[Any]:
        """Run the loop of one point from its constants and its first carry."""
        consts, init = self.split(args)
        return lax.while_loop(
            lambda carry: self.test(consts, carry),
            lambda carry: self.step(consts, carry),
            init,
        )

    def each_point(
        self,
        run: Callable[..., list[Any]],
        args: Sequence[Any],
        axes: Sequence[tuple[bool, ...]],
    ) -> list[Any]:
        """Run a function of one point for all points; `axes` are those of `args`."""
        for k in reversed(range(len(self.sizes))):
            run = jax.vmap(run, [0 if has[k] else None for has in axes])
        return run(*args)


def refilled(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function of arrays with a refilled loop in place of its `while_loop`.

    So JAX determines the types of the carry, the closed-over values and the derivative.
    """

    def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name != "while":
            return rebind(eqn, inputs)
        given = {name: eqn.params[name] for name in Loop._fields[:4]}
        num_consts = given["cond_nconsts"] + given["body_nconsts"]
        return Loop(**given, axes=((),) * num_consts).bind(*inputs)

    return interpret(trace(function, *args), args, rule)


def _run(*args: Any, **params: Any) -> list[Any]:
    loop = Loop(**params)
    if not loop.sizes:
        return loop.of_point(*args)
    consts, init = loop.split(args)
    if loop.num_points == 0:
        return init
    num = len(loop.sizes)
    flat = [x.reshape(loop.num_points, *x.shape[num:]) for x in init]
    found = Lanes(loop, consts).run(flat)
    return [x.reshape(*loop.sizes, *x.shape[1:]) for x in found]


@refill_p.def_effectful_abstract_eval
def _abstract(*args: Any, **params: Any) -> Any:
    loop = Loop(**params)
    effects = loop.cond_jaxpr.effects | loop.body_jaxpr.effects
    return loop.split(args)[1], frozenset(effects)


@refill_p.def_impl
def _evaluate(*args: Any, **params: Any) -> list[Any]:
    # Without `jit`, an eager call would run operation by operation.
    return jax.jit(lambda *args: _run(*args, **params))(*args)


mlir.register_lowering(refill_p, mlir.lower_fun(_run, multiple_results=True))


def _remake(eqn: Equation, bodies: list[Body], inputs: list[Any]) -> list[Any]:
    loop, (cond, body) = Loop(**eqn.params), bodies

    def of_point(*args: Any) -> list[Any]:
        consts, init = loop.split(args)
        return lax.while_loop(
            lambda carry: cond(*consts[: loop.cond_nconsts], *carry)[0],
            lambda carry: body(*consts[loop.cond_nconsts :], *carry),
            init,
        )

    axes = loop.axes_of(inputs)
    return loop.each_point(lambda *args: refilled(of_point, *args), inputs, axes)


register(
    refill_p.name,
    Entry(
        "while",
        ("cond_jaxpr", "body_jaxpr"),
        remake=_remake,
        # Whether it is batched as one loop or lane by lane is known only to `rules.py`.
        flow=lambda flow, eqn, _: flow.opaque(eqn),
    ),
)


def _batch(
    axis_data: Any, args: Sequence[Any], dims: Sequence[int | None], **params: Any
) -> tuple[list[Any], list[int | None]]:
    loop = Loop(**params)
    args = [
        x if dim is None else jnp.moveaxis(x, dim, 0)
        for x, dim in zip(args, dims, strict=True)
    ]
    batched = [dim is not None for dim in dims]
    depends = _carry_depends(loop, args, batched)
    read = [*batched[: loop.cond_nconsts], *depends]
    if depends_on(loop.cond_jaxpr, read)[0]:
        out = _with_axis(loop, args, batched, axis_data.size)
        return out, [0] * len(out)

    # All points end at the same step, so no lane would wait: put the batch into the
    # carry, after the existing axes over points.
    every = jax.vmap(
        loop.of_point,
        [0 if b else None for b in batched],
        [0 if d else None for d in depends],
        axis_size=axis_data.size,
    )
    axes = loop.axes_of(args)
    behind = [
        jnp.moveaxis(x, 0, sum(has)) if b else x
        for x, b, has in zip(args, batched, axes, strict=True)
    ]
    out = loop.each_point(lambda *args: refilled(every, *args), behind, axes)
    return out, [len(loop.sizes) if d else None for d in depends]


def _carry_depends(
    loop: Loop, args: Sequence[Any], batched: Sequence[bool]
) -> list[bool]:
    """Return which final carries differ between the points of a batch."""
    of_one = [
        jax.typeof(x).update(shape=jnp.shape(x)[b + sum(has) :])
        for x, b, has in zip(args, batched, loop.axes_of(args), strict=True)
    ]
    return depends_on(trace(loop.of_point, *of_one), batched)


def _with_axis(
    loop: Loop, args: Sequence[Any], batched: Sequence[bool], size: int
) -> list[Any]:
    """Run the loop with one more batch of points."""
    of_consts, of_init = loop.split(batched)
    consts, init = loop.split(args)
    carry = [
        x if b else jnp.broadcast_to(x, (size, *jnp.shape(x)))
        for x, b in zip(init, of_init, strict=True)
    ]
    pairs = zip(of_consts, loop.axes, strict=True)
    axes = tuple((b, *has) for b, has in pairs)
    return loop._replace(axes=axes, sizes=(size, *loop.sizes)).bind(*consts, *carry)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], **params: Any
) -> tuple[list[Any], list[Any]]:
    """Differentiate the loops of all points, which then wait for each other."""
    loop = Loop(**params)
    moving = [
        type(t) is not ad.Zero and _has_slope(x)
        for x, t in zip(primals, tangents, strict=True)
    ]

    def every(*given: Any) -> list[Any]:
        args = fill(primals, moving, given)
        return loop.each_point(loop.of_point, args, loop.axes_of(args))

    given = list(it.compress(primals, moving)), list(it.compress(tangents, moving))
    outputs, slopes = jax.jvp(every, *given)
    return outputs, [
        t if _has_slope(y) else ad.Zero(jax.typeof(y).to_tangent_aval())
        for y, t in zip(outputs, slopes, strict=True)
    ]


def _has_slope(x: Any) -> bool:
    return jnp.issubdtype(jax.typeof(x).dtype, jnp.inexact)


batching.fancy_primitive_batchers[refill_p] = _batch
ad.primitive_jvps[refill_p] = _jvp
