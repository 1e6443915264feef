"""The law that dtypes go through a stage."""

import contextlib
import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.typing import DTypeLike

from ..._captured import Fixed
from ..._tree import leaves_with_names
from ..._types import Key, PyTree, StageLike
from .compare import Bound
from .law import Broken, Undecided, law
from .noise import only_noise_promotes
from .report import check
from .trial import Trial, evaluate
from .wide import cast, wide

_OTHERS = (jnp.bfloat16, jnp.float16, jnp.float64)


@law("dtype", "what has the dtype of the input has it in every precision.")
def dtype_law(trial: Trial) -> str | None:
    inexact = [v for v in jtu.tree_leaves(trial.x) if eqx.is_inexact_array(v)]
    dtypes = {_real(v.dtype) for v in inexact}
    if len(dtypes) != 1:
        return None
    (own,) = dtypes
    try:
        base = _forms(trial)
    except Exception as error:
        raise Undecided("the stage cannot be traced") from error
    if not any(getattr(v, "weak_type", False) for v in inexact):
        for name, form in base.items():
            if form.weak_type:
                raise Broken("weak", _WEAK.format(form.dtype), name)
    follow = {name for name, form in base.items() if _real(form.dtype) == own}
    draws_default = False
    for other in (own, *_OTHERS):
        in_wide = other in (own, jnp.float64)
        with contextlib.ExitStack() as stack:
            stack.enter_context(wide() if in_wide else _promoting())
            try:
                given = _in_dtype(trial, other)
                forms = _forms(given)
            except Exception:
                continue  # which the stage cannot do
            promoted = [
                name
                for name in sorted(follow & forms.keys())
                if _real(forms[name].dtype) != np.dtype(other)
                and not _is_nearest(forms[name].dtype, other)
            ]
            # Only draws of the default dtype are wider still with 64 bits.
            if promoted and (draws_default or other == own) and _by_noise(given, other):
                draws_default = True
                continue
        for name in promoted:
            dtype = forms[name].dtype
            also = " with `jax_enable_x64`" if in_wide else ""
            what = (
                f"it is {dtype} for an input of "
                f"{np.dtype(other).name}{also}, and {base[name].dtype} for one of "
                f"{own.name}; make what it is computed with of `x.dtype`"
            )
            raise Broken("promoted", what, name)
    return _NOISE if draws_default else None


_NOISE = (
    "what is drawn has JAX's default dtype, and promotes other inputs than those of "
    "float32; give it one, as in `jax.random.normal(key, x.shape, x.dtype)`"
)


def _by_noise(trial: Trial, dtype: DTypeLike) -> bool:
    """Whether nothing but draws from the key promotes what is given."""
    if trial.key is None:
        return False
    given = (trial.stage, trial.x, trial.state)
    count = len(jtu.tree_leaves(eqx.filter(given, eqx.is_array)))
    program = eqx.filter_make_jaxpr(evaluate)(*given, trial.key)[0]
    return only_noise_promotes(program, dtype, count)


_WEAK = (
    "it is {} of a weak type: made of Python numbers alone, it follows the dtype of no "
    "input, and takes on that of what it meets; give the numbers a dtype, as in "
    "`jnp.where(x > 0, 1.0, 0.0).astype(x.dtype)`"
)


def _promoting() -> contextlib.AbstractContextManager[Any]:
    return jax.numpy_dtype_promotion("standard")


def _real(dtype: DTypeLike) -> np.dtype:
    """The dtype of real numbers in the precision of another."""
    return np.dtype(jnp.finfo(dtype).dtype)


def _is_nearest(dtype: DTypeLike, other: DTypeLike) -> bool:
    """Whether it is the nearest that there is: complex numbers are never half."""
    return dtype == jnp.complex64 and np.dtype(other).itemsize == 2


def _in_dtype(trial: Trial, dtype: DTypeLike) -> Trial:
    """The trial with all numbers in a precision; keys and integers as they are.

    Those of a `frozen` stage too, which is meant to be what the stage is.
    """

    def follow(leaf: Any) -> Any:
        is_frozen = isinstance(leaf, Fixed) and eqx.is_inexact_array(leaf.value)
        return Fixed(cast(leaf.value, dtype)) if is_frozen else leaf

    parts = {"stage": trial.stage, "x": trial.x, "state": trial.state}
    return dataclasses.replace(trial, **cast(jtu.tree_map(follow, parts), dtype))


def _forms(trial: Trial) -> dict[str, Any]:
    """Shapes and dtypes of the inexact outputs, by name."""
    given = (trial.stage, trial.x, trial.state, trial.key)
    named = leaves_with_names(eqx.filter_eval_shape(evaluate, *given))
    return {
        name: form
        for name, form in named
        if isinstance(form, jax.ShapeDtypeStruct)
        and jnp.issubdtype(form.dtype, jnp.inexact)
    }


def check_dtype(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage promotes nothing, in any precision.

    An output with the dtype of the input has it also if input and parameters are of
    `bfloat16`, `float16` or `float64`, and with `jax_enable_x64`; and it is no weak
    type. Found by abstract evaluation: nothing is computed. A precision in which the
    stage raises is left out, and so is an input of several dtypes.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax.numpy as jnp
        >>> table = jnp.arange(3.0)  # float32, whatever `x` is
        >>> ept.check_dtype(lambda x: x * table, jnp.ones(3))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_dtype`: the law `dtype` is broken: ...
    """
    __tracebackhide__ = True
    check(dtype_law, stage, x, state, key, rtol, atol)
