"""The law of compiled programs: compiled once, and without large constants."""

from typing import Any

import jax.tree_util as jtu
from equinox.nn import State

from ..._jaxprs.jaxpr import equations, open_jaxpr, sub_jaxprs
from ..._jaxprs.table import kind
from ..._tree import is_key_array
from ..._types import Key, PyTree, StageLike
from .compare import Bound
from .compiles import compilations, names_of
from .law import Broken, Undecided, law
from .report import check
from .trial import Trial, copied

# Smaller ones are tables and masks, which belong to the code.
_MOST_BYTES = 2**20


@law("recompiles", "a second call of the same types compiles nothing.")
def recompiles_law(trial: Trial) -> None:
    try:
        program = trial.program[0]
    except Exception as error:
        raise Undecided("the stage cannot be traced") from error
    big = [v for v in _constants(program) if v.nbytes > _MOST_BYTES]
    if big:
        raise Broken(
            "constant",
            f"an array of {big[0].nbytes / 2**20:.1f} MB ({big[0].dtype}"
            f"{list(big[0].shape)}) is compiled into the program; hold it in a field, "
            "or take it as an argument",
        )
    # A loop or a branch that is not under `jit` is compiled at each call, by JAX.
    if _compiles_anew(program):
        return
    # The calls get copies, since a function may donate its arguments.
    first, second = (trial.on(jtu.tree_map(copied, trial.x)) for _ in range(2))
    first.again()  # should another input have filled a cache
    with compilations() as found:
        second.again()
    if found:
        raise Broken(
            "again",
            f"each call compiles {names_of(found)}; make the function that is jitted "
            "once, outside of the call",
        )


def _compiles_anew(jaxpr: Any) -> bool:
    """Whether a loop or the like stands outside of `jit`, perhaps in a custom rule."""
    return any(
        kind(eqn) in _COMPILED_ANEW
        or eqn.primitive.name != "jit"
        and kind(eqn) == "call"
        and any(map(_compiles_anew, sub_jaxprs(eqn)))
        for eqn in open_jaxpr(jaxpr)[0].eqns
    )


_COMPILED_ANEW = (None, "scan", "while", "branches", "other", "callback")


def _constants(program: Any) -> list[Any]:
    own = list(open_jaxpr(program)[1])
    for eqn in equations(program):
        for inner in sub_jaxprs(eqn):
            own += open_jaxpr(inner)[1]
    return [v for v in own if hasattr(v, "nbytes") and not is_key_array(v)]


def check_recompiles(
    stage: StageLike,
    x: PyTree,
    state: State | None = None,
    *,
    key: Key | None = None,
    rtol: Bound = None,
    atol: Bound = None,
) -> None:
    """Checks that a stage is compiled once for arguments of the same types.

    A second plain call compiles nothing, if the stage has no loop and no branch outside
    of `jit` (which JAX compiles at each call). No array of more than 1 MB is a constant
    of its program.

    **Arguments:** those of `check_stage`.

    **Raises:** `AssertionError` if the law is broken.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> ept.check_recompiles(lambda x: jax.jit(lambda y: y + 1)(x), jnp.ones(2))
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_recompiles`: the law `recompiles` is ...
    """
    __tracebackhide__ = True
    check(recompiles_law, stage, x, state, key, rtol, atol)
