"""The law that outputs keep the precision of the inputs."""

import functools as ft
import itertools as it
import types
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike

from ..._captured import JITTED, contents
from ..._jaxprs import Equation, open_jaxpr, sub_jaxprs
from ..._stage import Lift
from ..._tree import leaf_text
from .index import is_installed, lines_of, user_line
from .law import Broken, Undecided, law
from .trial import Programs, Trial

Lines: TypeAlias = Sequence[tuple[str, int]]

# One half precision, since each one is a trace of the function.
_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float64)


@law("dtype", "an output with the dtype of the input has it in every precision.")
def dtype_law(trial: Trial) -> str | None:
    arrays = jtu.tree_leaves((trial.call.args, trial.call.state))
    inexact = [v for v in arrays if eqx.is_inexact_array(v)]
    dtypes = {_real(v.dtype) for v in inexact}
    if len(dtypes) != 1:
        raise Undecided("the inputs have several dtypes, or none of them is inexact")
    (own,) = dtypes
    base = _forms_of(trial.programs)
    if not any(getattr(v, "weak_type", False) for v in inexact):
        for name, form in base.items():
            if form.weak_type:
                raise Broken(_WEAK.format(form.dtype), name)
    by_dtype, where = {own: base}, {own: ""}
    # There are no half-precision complex numbers.
    is_complex = any(jnp.issubdtype(v.dtype, jnp.complexfloating) for v in inexact)
    dtypes = {np.dtype(d) for d in (_DTYPES[::2] if is_complex else _DTYPES)}
    for dtype in sorted(dtypes - {own}, key=str):
        # float64 is the trial of the law `derivative`.
        other = trial.wide if dtype == np.float64 else trial.in_dtype(dtype)
        if other is None:
            continue
        lines = list(_lines(other.programs.jaxpr, dtype))
        # A solver may compute in the precision of its time steps on purpose, and pass
        # wider numbers to functions of the user.
        if not lines or not is_installed(lines[0][0][0]):
            by_dtype[dtype] = _forms_of(other.programs)
            where[dtype] = next(filter(None, map(user_line, lines)), "")
    _keeps(by_dtype, own, where, trial)
    refused = {d.name for d in dtypes} - {d.name for d in by_dtype}
    return f"{', '.join(sorted(refused))} cannot be judged" if refused else None


def _keeps(
    by_dtype: dict[np.dtype, dict[str, Any]],
    own: np.dtype,
    where: dict[np.dtype, str],
    trial: Trial,
) -> None:
    """Raise `Broken` for an output that does not follow the dtype of the inputs."""
    for source in (own, np.dtype(np.float32)):
        forms = by_dtype.get(source, {})
        follow = [n for n, form in forms.items() if _real(form.dtype) == source]
        for dtype, name in it.product(by_dtype, follow):
            got = getattr(by_dtype[dtype].get(name), "dtype", dtype)
            # A complex output of a real input has no half precision.
            nearest = got == jnp.complex64 and dtype.itemsize == 2
            if _real(got) != dtype and not nearest:
                raise Broken(
                    f"it is {got} for an input of {dtype.name}{where[dtype]}, and "
                    f"{forms[name].dtype} for one of {source.name}; create the arrays "
                    f"and draws that it uses in `x.dtype`{_closed_over(trial)}",
                    name,
                )


def _closed_over(trial: Trial) -> str:
    """Return a text with the single arrays that functions of the user close over.

    Raise `Undecided` if they close over parameters, which the law does not cast: those
    in modules and other pytrees, and in functions that an installed package made.
    """
    fn = trial.call.fn
    single = dict(_single_arrays(fn.fn if isinstance(fn, Lift) else fn))
    # An array that the function makes is another one in each trace.
    before = {id(v) for v in trial.programs.constants}
    again = trial.in_dtype(jnp.bfloat16)
    shared = [v for v in again.programs.constants if id(v) in before] if again else []
    if any(
        isinstance(v, jax.Array)  # an array of NumPy is a constant
        and eqx.is_inexact_array(v)
        and all(v is not other for other in single.values())
        for v in shared
    ):
        raise Undecided("it closes over parameters; pass their module as an argument")
    if not single:
        return ""
    names = [f"`{name}` ({leaf_text(v)})" for name, v in single.items()]
    return f"; it closes over {', '.join(names)}: cast it, or take it as an argument"


def _single_arrays(fn: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    if is_installed(getattr(getattr(fn, "__code__", None), "co_filename", "")):
        return
    for _, name, value in contents(fn):
        if eqx.is_inexact_array(value):
            yield name, value
        elif depth < 4 and isinstance(value, _FUNCTIONS):
            yield from _single_arrays(value, depth + 1)


_FUNCTIONS = types.FunctionType | types.MethodType | ft.partial | JITTED

_WEAK = (
    "it is a weakly typed {}: computed from Python numbers alone, it does not have the "
    "dtype of the input, and other arrays change its dtype; give the numbers a dtype, "
    "as in `jnp.where(x > 0, 1.0, 0.0).astype(x.dtype)`"
)


def _real(dtype: DTypeLike) -> np.dtype:
    """Return the real dtype with the precision of another dtype."""
    return np.dtype(jnp.finfo(dtype).dtype)


def _forms_of(programs: Programs) -> dict[str, Any]:
    """Return the inexact outputs of the trace, by name."""
    avals = programs.jaxpr.out_avals
    return {programs.out_names[i]: avals[i] for i in programs.inexact}


def _lines(program: Any, dtype: np.dtype, outer: Lines = (("", 0),)) -> Iterator[Lines]:
    """Yield the lines that convert to wider numbers, each with those around it.

    A nested `jit` of a JAX function has the lines of its call.
    """
    for eqn in open_jaxpr(program)[0].eqns:
        lines = lines_of(eqn) or outer
        if eqn.primitive.name == "convert_element_type" and _widens(eqn, dtype):
            yield lines
        for inner in sub_jaxprs(eqn):
            yield from _lines(inner, dtype, lines)


def _widens(eqn: Equation, dtype: np.dtype) -> bool:
    """Return whether a conversion is from a dtype to a wider inexact one."""
    before: Any = eqn.invars[0].aval
    after = jnp.dtype(eqn.params["new_dtype"])
    is_inexact = jnp.issubdtype(after, jnp.inexact)
    return is_inexact and before.dtype == dtype and after.itemsize > dtype.itemsize
