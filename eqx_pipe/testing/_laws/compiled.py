"""The laws of traced programs: the same values, compiled once, by all parameters."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._jaxprs import Equation, Flow, equations, kind, open_jaxpr, sub_jaxprs
from ..._tree import is_key_array
from .compare import agree, agree_in_struct
from .compiles import names_of
from .law import Broken, law, must_work
from .trial import Trial

# Smaller constants are tables and masks, which are part of the code.
_MOST_BYTES = 2**20


@law("jit", "compiled, it returns what a plain call returns, in the same structure.")
def jit_law(trial: Trial) -> None:
    if trial.trace_error is not None:
        with must_work("tracing"):
            raise trial.trace_error
    programs, plain = trial.programs, trial.plain
    avals = programs.jaxpr.out_avals
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in avals]
    traced, wanted = (
        jtu.tree_map(_struct, tree) for tree in (programs.output(structs), plain)
    )
    agree_in_struct(traced, wanted, ("traced", "plain"))
    with must_work("the compiled function"):
        found = programs.value(programs.leaves(trial.call))
    # Python numbers are compared above.
    arrays = jtu.tree_leaves(eqx.filter(plain, eqx.is_array))
    if len(arrays) == len(found):
        names = programs.out_names
        got, ours = (dict(zip(names, v, strict=True)) for v in (found, arrays))
        agree(got, ours, ("compiled", "plain"), trial.tolerance)


def _struct(leaf: Any) -> Any:
    """Return the struct of a Python number as an array; arrays unchanged."""
    if isinstance(leaf, bool | int | float | complex):
        return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
    return leaf


@law("recompiles", "a second call of the same types compiles nothing.")
def recompiles_law(trial: Trial) -> None:
    program = trial.programs.jaxpr
    big = [v for v in _constants(program) if v.nbytes > _MOST_BYTES]
    if big:
        raise Broken(
            f"an array of {big[0].nbytes / 2**20:.1f} MB ({big[0].dtype}"
            f"{list(big[0].shape)}) is compiled into the program; hold it in a field, "
            "or take it as an argument"
        )
    # JAX compiles a loop or a branch outside `jit` at each call.
    if _compiles_anew(program):
        return
    found = trial.again[1]
    if found:
        raise Broken(
            f"each call compiles {names_of(found)}; create the jitted function once, "
            "outside of the call"
        )


_COMPILED_ANEW = (None, "scan", "while", "branches", "other", "callback")


def _compiles_anew(jaxpr: Any) -> bool:
    """Return whether a loop or branch is outside `jit`."""
    return any(
        kind(eqn) in _COMPILED_ANEW
        or eqn.primitive.name != "jit"
        and kind(eqn) == "call"
        and any(map(_compiles_anew, sub_jaxprs(eqn)))
        for eqn in open_jaxpr(jaxpr)[0].eqns
    )


def _constants(program: Any) -> list[Any]:
    own = list(open_jaxpr(program)[1])
    for eqn in equations(program):
        for inner in sub_jaxprs(eqn):
            own += open_jaxpr(inner)[1]
    return [v for v in own if hasattr(v, "nbytes") and not is_key_array(v)]


@law("params", "each array of a module, and its gradient, reach the output.")
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
            what = "it reaches the output through rounding only, so its gradient is 0"
            raise Broken(f"{what}; use a straight-through estimator", name)


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
