"""A primitive that is `lax.while_loop` until its lanes would wait for each other.

Under `jax.vmap`, `lax.while_loop` goes on in all lanes until the last one is finished.
This loop remembers instead that it has a batch of points, through any number of
`vmap`s, and decides only when it is compiled how many of them run at a time
(`lanes.py`). That takes a primitive; `rules.py` holds how it is batched and
differentiated.

Its parameters are those of the equation of a `lax.while_loop` of a single point, and
the `sizes` of the batches that it was given, the outermost first. The carries have a
leading axis for each batch; `axes` says for each constant which of these it has, so
that nothing is copied under a `vmap` in a `vmap`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import mlir

from .._jaxprs import (
    Body,
    Entry,
    Equation,
    as_function,
    interpret,
    rebind,
    register,
    trace,
)
from .._types import ClosedJaxpr
from .lanes import Lanes

refill_p = Primitive("eqx_pipe_refill")
refill_p.multiple_results = True
# JAX 0.12 asks a primitive with such a jaxpr among its parameters (one that holds
# `jnp.searchsorted`, say) for a rule that lowers it. `_run` evaluates the jaxprs while
# it is traced for a compiled program, and there each equation is lowered by itself.
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
        """Return which axes each constant and each carry has."""
        carries = len(args) - len(self.axes)
        return [*self.axes, *[(True,) * len(self.sizes)] * carries]

    def bind(self, *args: Any) -> list[Any]:
        return refill_p.bind(*args, **self._asdict())

    def test(self, consts: Sequence[Any], carry: Sequence[Any]) -> Any:
        """Return whether the loop of a point goes on."""
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
        """Run a function of one point for every point, of arrays with some `axes`."""
        for k in reversed(range(len(self.sizes))):
            run = jax.vmap(run, [0 if has[k] else None for has in axes])
        return run(*args)


def refilled(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function of arrays with a refilled loop in the place of its `while_loop`.

    So JAX works out the carry's types, what the loop closes over, and its derivative.
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
    # Called eagerly it would otherwise run operation by operation.
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
