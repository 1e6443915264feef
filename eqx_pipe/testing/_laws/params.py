"""The law that all parameters of a module affect its output."""

from typing import Any

import jax.numpy as jnp

from ..._jaxprs import Equation, Flow
from .law import Broken, law
from .trial import Trial


@law("params", "each array of parameters reaches the output, and so does its gradient.")
def params_law(trial: Trial) -> None:
    programs = trial.programs
    leaves = programs.leaves(trial.call)
    for i in programs.moving:
        name = programs.names[i]
        if not name.startswith("fn.") or not leaves[i].size:
            continue
        marks = [i == k for k in range(len(leaves))]
        if not any(Flow().run(programs.jaxpr, marks)):
            what = "it does not reach the output; the function may use an older copy"
            raise Broken(f"{what}, such as one that it closes over", name)
        if not any(_Gradients().run(programs.jaxpr, marks)):
            what = "it reaches the output by roundings alone, so its gradient is zero"
            raise Broken(f"{what}; round behind a straight-through estimator", name)


class _Gradients(Flow):
    """The flow of values through which gradients pass: not through rounding.

    A `stop_gradient` is intended, and custom rules may do anything: both pass values
    on.
    """

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation are marked."""
        name = eqn.primitive.name
        if any(marks) and name.startswith("custom_"):
            return [True] * len(eqn.outvars)
        if name in ("round", "floor", "ceil", "sign") or _to_integers(eqn):
            return [False] * len(eqn.outvars)
        return super().equation(eqn, marks)


def _to_integers(eqn: Equation) -> bool:
    if eqn.primitive.name != "convert_element_type":
        return False
    dtype: Any = eqn.params["new_dtype"]
    return not jnp.issubdtype(dtype, jnp.inexact)
