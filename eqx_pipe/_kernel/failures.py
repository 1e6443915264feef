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
    scan_of,
    stepped,
    trace,
    while_counts,
    within,
)
from .._types import ClosedJaxpr

_SITES = 1024
"""One more than the number of errors of a function: a number has its message, too."""


def without_errors(jaxpr: ClosedJaxpr) -> tuple["Failures", ClosedJaxpr]:
    """Return the errors that a function may raise, and the function without them.

    If there are any, its last output is the number of an error, or 0.
    """
    failures = Failures()
    if any(_site(eqn) for eqn in equations(jaxpr)):
        structs = [v.aval for v in open_jaxpr(jaxpr)[0].invars]
        run = failures.flagged
        jaxpr = trace(lambda *args: run(jaxpr, jnp.int32(0), args), *structs)
        failures._checked.clear()  # tracers of this trace
    return failures, jaxpr


class Failures:
    """The functions by which a function raises its errors."""

    def __init__(self) -> None:
        self._raisers: list[Callable[..., Any]] = []
        # The values that depend on those that were checked.
        self._checked: dict[int, Any] = {}

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

    def flagged(self, jaxpr: Any, code: Any, args: Sequence[Any]) -> list[Any]:
        """Return the outputs of a jaxpr, and the number of the first error.

        `code` is the number of an error from before, or 0. After an error no loop
        begins that depends on a value that was checked, since it may have no end.
        """

        def rule(eqn: Equation, inputs: list[Any]) -> list[Any]:
            nonlocal code
            after = any(id(x) in self._checked for x in inputs)
            inside, name = [*within(eqn)], eqn.primitive.name
            fails = any(map(_site, inside))
            if fails or (after and any(kind(inner) == "while" for inner in inside)):
                known = name if name in RULES else kind(eqn)
                known = "site" if _site(eqn) else known
                if known not in RULES:
                    raise value_error(
                        "kernel",
                        f"`{name}` is not supported in kernels with errors.",
                        "Sweep `fn` itself.",
                    )
                with eqn.ctx.manager:
                    *outputs, code = RULES[known](self, eqn, code, inputs)
            else:
                outputs = rebind(eqn, inputs)
            if fails or after:
                self._checked |= {id(x): x for x in outputs}
            return outputs

        return [*interpret(jaxpr, args, rule), code]

    def _at_site(self, eqn: Equation, code: Any, inputs: list[Any]) -> list[Any]:
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
        new = jnp.int32(number) * np.int32(_SITES) + np.int32(len(self._raisers))
        outputs = as_function(branches[1 - which])(*inputs[1:])
        fails = inputs[0] == jnp.asarray(which, inputs[0].dtype)
        return [*outputs, jnp.where(fails & (code == 0), new, code)]

    def _call(self, eqn: Equation, code: Any, inputs: list[Any]) -> list[Any]:
        return self.flagged(bodies(eqn)[0], code, inputs)

    def _branches(self, eqn: Equation, code: Any, inputs: list[Any]) -> list[Any]:
        runs = [self._body(branch) for branch in bodies(eqn)]
        return list(lax.switch(inputs[0], runs, *inputs[1:], code))

    def _scan(self, eqn: Equation, code: Any, inputs: list[Any]) -> list[Any]:
        return scan_of(eqn, self._body(bodies(eqn)[0]), inputs, [code])

    def _while_loop(self, eqn: Equation, code: Any, inputs: list[Any]) -> list[Any]:
        (cond, body), (of_cond, of_body) = bodies(eqn), while_counts(eqn)
        run = self._body(body)
        consts, init = inputs[of_cond : of_cond + of_body], inputs[of_cond + of_body :]

        def goes(carry: Sequence[Any]) -> Any:
            return as_function(cond)(*inputs[:of_cond], *carry)[0]

        def step(state: Any) -> Any:
            *carry, code = state
            *outputs, code = run(*consts, *carry, code)
            return [*stepped(eqn, goes, outputs, carry), code]

        def goes_on(state: Any) -> Any:
            *carry, code = state
            return jnp.any(goes(carry)) & (code == 0)

        return lax.while_loop(goes_on, step, [*init, code])

    def _body(self, jaxpr: Any) -> Callable[..., list[Any]]:
        def run(*args: Any) -> list[Any]:
            *inputs, code = args
            self._checked |= {id(x): x for x in inputs}
            return self.flagged(jaxpr, code, inputs)

        return run


RULES: dict[Any, Callable[[Failures, Equation, Any, list[Any]], list[Any]]] = {
    "site": Failures._at_site,
    "call": Failures._call,
    "branches": Failures._branches,
    "scan": Failures._scan,
    "while": Failures._while_loop,
}
"""Functions for each kind of primitive, or for one primitive by its name."""


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
