"""A primitive that is `lax.while_loop` until its lanes would wait for each other.

Under `jax.vmap`, `lax.while_loop` goes on in all lanes until the last one is finished.
This loop remembers instead that it has a batch of points, through any number of
`vmap`s, and decides only when it is compiled how many of them run at a time
(`lanes.py`). That takes a primitive; `rules.py` holds how it is batched and
differentiated.

Its parameters are those of the equation of a `lax.while_loop` of a single point. If
`size` is not `None`, there are as many points: the carries have a leading axis of that
size, and `reads` says what point i sees of each constant: all of it (`"shared"`), row i
(`"own"`), or row `entries[i]` (`"listed"`), where the entries are an operand too. (So
nothing is copied under a `vmap` in a `vmap`.)
"""

import itertools as it
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

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
from .._tree import fill
from .._types import ClosedJaxpr
from .lanes import Lanes

refill_p = Primitive("eqx_pipe_refill")
refill_p.multiple_results = True
# JAX 0.12 asks a primitive with such a jaxpr among its parameters (one that holds
# `jnp.searchsorted`, say) for a rule that lowers it. `_run` evaluates the jaxprs while
# it is traced for a compiled program, and there each equation is lowered by itself.
refill_p.is_high = lambda *_, **__: False  # pyright: ignore[reportAttributeAccessIssue]


Reads: TypeAlias = Literal["shared", "own", "listed"]


class Loop(NamedTuple):
    """The parameters of the primitive."""

    cond_jaxpr: ClosedJaxpr
    body_jaxpr: ClosedJaxpr
    cond_nconsts: int
    body_nconsts: int
    reads: tuple[Reads, ...]
    size: int | None = None

    def split(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the constants, the entries of those that are listed, the carry."""
        rest = iter(args)
        consts = list(it.islice(rest, len(self.reads)))
        return consts, list(it.islice(rest, sum(self.listed))), list(rest)

    @property
    def listed(self) -> list[bool]:
        """For each constant whether its entries are an operand."""
        return [how == "listed" for how in self.reads]

    def entry_of_each(self, entries: Sequence[Any]) -> list[Any]:
        """Return the entries for each constant, `None` if it is not listed."""
        return fill([None] * len(self.reads), self.listed, entries)

    def pointed(self) -> list[bool]:
        """Return which constants and carries have an axis for the points."""
        num_carry = len(self.body_jaxpr.out_avals)
        own = [how != "shared" for how in self.reads]
        return [*own, *[self.size is not None] * num_carry]

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
        consts, init = args[: len(self.reads)], args[len(self.reads) :]
        return lax.while_loop(
            lambda carry: self.test(consts, carry),
            lambda carry: self.step(consts, carry),
            list(init),
        )

    def each_point(
        self, run: Callable[..., list[Any]], args: Sequence[Any]
    ) -> list[Any]:
        """Run a function like `of_point` for every point, under `vmap`."""
        if self.size is None:
            return run(*args)
        consts, entries, init = self.split(args)
        pairs = zip(consts, self.entry_of_each(entries), strict=True)
        own = [x if entry is None else x[entry] for x, entry in pairs]
        axes = [None if how == "shared" else 0 for how in self.reads] + [0] * len(init)
        return jax.vmap(run, axes)(*own, *init)


def refilled(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Run a function of arrays with a refilled loop in the place of its `while_loop`.

    So JAX works out the carry's types, what the loop closes over, and its derivative.
    """

    def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
        if eqn.primitive.name != "while":
            return rebind(eqn, inputs)
        given = {name: eqn.params[name] for name in Loop._fields[:4]}
        num_consts = given["cond_nconsts"] + given["body_nconsts"]
        return Loop(**given, reads=("shared",) * num_consts).bind(*inputs)

    return interpret(trace(function, *args), args, rule)


def _run(*args: Any, **params: Any) -> list[Any]:
    loop = Loop(**params)
    consts, entries, init = loop.split(args)
    if loop.size is None:
        return loop.of_point(*consts, *init)
    if loop.size == 0:
        return init
    return Lanes(loop, consts, entries).run(init)


@refill_p.def_effectful_abstract_eval
def _abstract(*args: Any, **params: Any) -> Any:
    loop = Loop(**params)
    effects = loop.cond_jaxpr.effects | loop.body_jaxpr.effects
    return loop.split(args)[2], frozenset(effects)


@refill_p.def_impl
def _evaluate(*args: Any, **params: Any) -> list[Any]:
    # Called eagerly it would otherwise run operation by operation.
    return jax.jit(lambda *args: _run(*args, **params))(*args)


mlir.register_lowering(refill_p, mlir.lower_fun(_run, multiple_results=True))


def _remake(eqn: Equation, bodies: list[Body], inputs: list[Any]) -> list[Any]:
    loop, (cond, body) = Loop(**eqn.params), bodies

    def of_point(*args: Any) -> list[Any]:
        consts, init = args[: len(loop.reads)], args[len(loop.reads) :]
        return lax.while_loop(
            lambda carry: cond(*consts[: loop.cond_nconsts], *carry)[0],
            lambda carry: body(*consts[loop.cond_nconsts :], *carry),
            list(init),
        )

    return loop.each_point(lambda *args: refilled(of_point, *args), inputs)


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
