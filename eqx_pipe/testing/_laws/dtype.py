"""The law that outputs keep the precision of the inputs."""

import itertools as it
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.typing import DTypeLike

from ..._jaxprs import Equation, open_jaxpr, sub_jaxprs
from .index import place_of
from .law import Broken, Undecided, law
from .programs import Programs
from .trial import Trial

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16, jnp.float64)


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
    found = {own: base}
    for dtype in (d for d in map(np.dtype, _DTYPES) if d != own):
        # float64 is the trial of the law `derivative`.
        other = trial.wide if dtype == np.float64 else trial.in_dtype(dtype)
        if other and not _by_packages(other.programs.jaxpr, dtype):
            found[dtype] = _forms_of(other.programs)
    _keeps(found, own)
    refused = {np.dtype(d).name for d in _DTYPES} - {d.name for d in found}
    return f"{', '.join(sorted(refused))} cannot be judged" if refused else None


def _keeps(found: dict[np.dtype, dict[str, Any]], own: np.dtype) -> None:
    """Raise `Broken` for an output that does not follow the dtype of the inputs."""
    for source in (own, np.dtype(np.float32)):
        forms = found.get(source, {})
        follow = [n for n, form in forms.items() if _real(form.dtype) == source]
        for dtype, name in it.product(found, follow):
            got = getattr(found[dtype].get(name), "dtype", dtype)
            # There are no half-precision complex numbers.
            nearest = got == jnp.complex64 and dtype.itemsize == 2
            if _real(got) != dtype and not nearest:
                raise Broken(
                    f"it is {got} for an input of {dtype.name}, and "
                    f"{forms[name].dtype} for one of {source.name}; create the "
                    "arrays and draws that it uses in `x.dtype`",
                    name,
                )


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


def _by_packages(program: Any, dtype: np.dtype) -> bool:
    """Return whether only installed packages convert to wider numbers.

    A solver may compute in the precision of its time steps on purpose.
    """
    known = [place for place in _places(program, dtype) if place]
    return bool(known) and all("site-packages" in place for place in known)


def _places(program: Any, dtype: np.dtype, outer: str = "") -> Iterator[str]:
    """Yield the files that convert to wider numbers.

    A nested `jit` of a JAX function has the place of its call.
    """
    for eqn in open_jaxpr(program)[0].eqns:
        place = place_of(eqn)[0] or outer
        if eqn.primitive.name == "convert_element_type" and _widens(eqn, dtype):
            yield place
        for inner in sub_jaxprs(eqn):
            yield from _places(inner, dtype, place)


def _widens(eqn: Equation, dtype: np.dtype) -> bool:
    """Return whether a conversion is from a dtype to a wider inexact one."""
    before: Any = eqn.invars[0].aval
    after = jnp.dtype(eqn.params["new_dtype"])
    is_inexact = jnp.issubdtype(after, jnp.inexact)
    return is_inexact and before.dtype == dtype and after.itemsize > dtype.itemsize
