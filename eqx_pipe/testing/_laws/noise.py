"""Whether nothing but draws of another dtype makes a program promote its input.

`x + jax.random.normal(key, x.shape)` has the dtype that JAX draws by default. That is
so common, and without consequence in single precision, that it is reported, and breaks
no law.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax.typing import DTypeLike

from ..._jaxprs.jaxpr import Equation, interpret, open_jaxpr, sub_jaxprs
from ..._jaxprs.table import kind

Marks: TypeAlias = frozenset[str]
"""What a value comes from: of `"key"` and `"input"`; and, if it is wider than the
input, whether it is one that was just `"cast"`, or so by a draw (`"noisy"`), or by
anything else (`"other"`)."""

_NOTHING: Marks = frozenset()
_MOVES = {"broadcast_in_dim", "reshape", "transpose", "squeeze", "copy"}


def only_noise_promotes(program: Any, dtype: DTypeLike, num_inputs: int) -> bool:
    """Whether all outputs that are wider than `dtype` are so by draws from a key.

    `num_inputs` counts the inputs before the key, which is the last.
    """
    width = jnp.dtype(dtype).itemsize

    def is_wide(aval: Any) -> bool:
        inexact = jnp.issubdtype(aval.dtype, jnp.inexact)
        return inexact and aval.dtype.itemsize > width

    def equation(eqn: Equation, marks: list[Marks]) -> list[Marks]:
        if kind(eqn) == "call":
            return interpret(next(sub_jaxprs(eqn)), marks, equation, lambda _: _NOTHING)
        whole = frozenset().union(*marks)
        return [_marks(eqn, marks, whole, is_wide(v.aval)) for v in eqn.outvars]

    count = len(open_jaxpr(program)[0].invars) - num_inputs
    given = [frozenset(["input"])] * num_inputs + [frozenset(["key"])] * count
    outputs = interpret(program, given, equation, lambda _: _NOTHING)
    wide = [
        marks
        for marks, atom in zip(outputs, open_jaxpr(program)[0].outvars, strict=True)
        if is_wide(atom.aval)
    ]
    return all("noisy" in marks and not marks & {"cast", "other"} for marks in wide)


def _marks(eqn: Equation, marks: Sequence[Marks], whole: Marks, is_wide: bool) -> Marks:
    """The marks of one output of an equation."""
    origin = whole & {"key", "input"}
    if not is_wide or "input" not in whole:
        return origin
    if eqn.primitive.name == "convert_element_type" and not whole & {"noisy", "other"}:
        return origin | {"cast"}
    if eqn.primitive.name in _MOVES:
        return whole
    meets_draw = frozenset(["key"]) in marks or "noisy" in whole
    if "other" in whole or not meets_draw:
        return origin | {"other"}
    return origin | {"noisy"}
