"""`equinox.error_if` in a kernel: the number of the first error of each lane.

JAX raises by calling Python in a branch. A kernel cannot call Python: a lane that fails
notes the number of its error and ends its loops. After the kernel, the error of one of
the lanes is raised in the usual way.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int32

from .._errors import value_error
from .._jaxprs import (
    Equation,
    as_function,
    bodies,
    equations,
    interpret,
    is_literal,
    kind,
    open_jaxpr,
    rebind,
    scan_counts,
    stepped,
    trace,
    while_counts,
    within,
)
from .._types import ClosedJaxpr

_SITES = 1024
"""One more than the number of errors of a function: a number has its message, too."""


class Failures:
    """A function whose errors are its last output, and the functions that raise them.

    `jaxpr` has the outputs of the function, then the number of an error or 0.
    """

    def __init__(self, jaxpr: ClosedJaxpr):
        self._raisers: list[Callable[..., Any]] = []
        self.jaxpr = jaxpr
        if any(_site(eqn) for eqn in equations(jaxpr)):
            structs = [v.aval for v in open_jaxpr(jaxpr)[0].invars]
            self.jaxpr = trace(lambda *args: self._flagged(jaxpr, args), *structs)

    def checked(self, outputs: list[Any]) -> list[Any]:
        """Return the outputs of many lanes, or raise the error of one of them."""
        if not self._raisers:
            return outputs
        *outputs, code = outputs
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in outputs]

        def failed(*_: Any) -> list[Any]:
            return jax.pure_callback(self._raise, structs, jnp.max(code))

        return lax.cond(jnp.any(code != 0), failed, lambda *x: list(x), *outputs)

    def _raise(self, code: Any) -> None:
        number, site = divmod(int(code), _SITES)
        self._raisers[site - 1](np.asarray(number))

    def _flagged(self, jaxpr: Any, args: Sequence[Any]) -> list[Any]:
        """Return the outputs of a jaxpr, and the number of its first error."""
        code = jnp.int32(0)

        def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
            nonlocal code
            if not any(_site(inner) for inner in within(eqn)):
                return rebind(eqn, inputs)
            known = "site" if _site(eqn) else kind(eqn)
            with eqn.ctx.manager:
                *outputs, new = _RULES[known](self, eqn, inputs)
            code = _first(code, new)
            return outputs

        return [*interpret(jaxpr, args, rule), code]

    def _at_site(self, eqn: Equation, inputs: list[Any]) -> list[Any]:
        """Return the outputs of the branch that does not raise, and the number."""
        which, call = _site(eqn) or (0, eqn)
        self._raisers.append(_raiser(call))
        if len(self._raisers) == _SITES:
            raise value_error(
                "kernel",
                f"`fn` has more than {_SITES - 1} calls of `equinox.error_if`.",
                "Sweep `fn` itself.",
            )
        atom: Any = call.invars[0]
        branches = eqn.params["branches"]
        read = open_jaxpr(branches[which])[0].invars
        number = atom.val if is_literal(atom) else inputs[1 + read.index(atom)]
        code = jnp.int32(number) * np.int32(_SITES) + np.int32(len(self._raisers))
        outputs = as_function(branches[1 - which])(*inputs[1:])
        fails = inputs[0] == jnp.asarray(which, inputs[0].dtype)
        return [*outputs, jnp.where(fails, code, jnp.int32(0))]

    def _call(self, eqn: Equation, inputs: list[Any]) -> list[Any]:
        return self._flagged(bodies(eqn)[0], inputs)

    def _branches(self, eqn: Equation, inputs: list[Any]) -> list[Any]:
        runs = [self._body(branch) for branch in bodies(eqn)]
        return list(lax.switch(inputs[0], runs, *inputs[1:]))

    def _scan(self, eqn: Equation, inputs: list[Any]) -> list[Any]:
        run, (num_consts, num_carry) = self._body(bodies(eqn)[0]), scan_counts(eqn)
        consts, rest = inputs[:num_consts], inputs[num_consts:]

        def step(state: Any, x: list[Any]) -> Any:
            carry, code = state
            *outputs, new = run(*consts, *carry, *x)
            return (outputs[:num_carry], _first(code, new)), outputs[num_carry:]

        keywords = {k: eqn.params[k] for k in ("length", "reverse", "unroll")}
        first = rest[:num_carry], jnp.int32(0)
        (carry, code), ys = lax.scan(step, first, rest[num_carry:], **keywords)
        return [*carry, *ys, code]

    def _while_loop(self, eqn: Equation, inputs: list[Any]) -> list[Any]:
        (cond, body), (of_cond, of_body) = bodies(eqn), while_counts(eqn)
        run = self._body(body)
        consts, init = inputs[of_cond : of_cond + of_body], inputs[of_cond + of_body :]

        def goes(carry: Sequence[Any]) -> Any:
            return as_function(cond)(*inputs[:of_cond], *carry)[0]

        def step(state: Any) -> Any:
            *carry, code = state
            *outputs, new = run(*consts, *carry)
            return [*stepped(eqn, goes, outputs, carry), _first(code, new)]

        def goes_on(state: Any) -> Any:
            *carry, code = state
            return jnp.any(goes(carry)) & (code == 0)

        return lax.while_loop(goes_on, step, [*init, jnp.int32(0)])

    def _body(self, jaxpr: Any) -> Callable[..., list[Any]]:
        return lambda *args: self._flagged(jaxpr, args)


_RULES: dict[Any, Callable[[Failures, Equation, list[Any]], list[Any]]] = {
    "site": Failures._at_site,
    "call": Failures._call,
    "branches": Failures._branches,
    "scan": Failures._scan,
    "while": Failures._while_loop,
}


def _first(code: Int32[Array, ""], new: Int32[Array, ""]) -> Int32[Array, ""]:
    return jnp.where(code == 0, new, code)


def _site(eqn: Equation) -> tuple[int, Equation] | None:
    """Return the branch of `equinox.error_if` that raises, and its call of Python."""
    if eqn.primitive.name != "cond" or len(eqn.params["branches"]) != 2:
        return None
    for which, branch in enumerate(eqn.params["branches"]):
        for inner in open_jaxpr(branch)[0].eqns[:1]:
            is_call = inner.primitive.name == "pure_callback"
            if is_call and _raiser(inner).__qualname__ == _RAISES:
                return which, inner
    return None


_RAISES = "_error.<locals>.raises"
"""The name of the function by which Equinox raises."""


def _raiser(eqn: Equation) -> Any:
    return getattr(eqn.params["callback"], "callback_func", _raiser)
