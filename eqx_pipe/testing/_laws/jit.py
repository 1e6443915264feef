"""The laws of the traced program: the same values, compiled once, by all parameters."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu

from ..._jaxprs import Equation, Flow, equations, kind, open_jaxpr, sub_jaxprs
from ..._tree import leaves_with_names
from ..._types import PyTree
from .compilations import compilations, names_of
from .index import is_installed, lines_of, outside_equinox, user_line
from .law import FIRST_ONLY, Broken, Undecided, agree, agree_in_struct, law, must_work
from .trial import Call, Programs, Trial

# Smaller constants are tables and masks, which are part of the code.
_MOST_BYTES = 2**20


@law("jit", "compiled, it returns what a plain call returns, in the same structure.")
def jit_law(trial: Trial) -> None:
    if trial.trace_error is not None:
        _check_metadata(trial)
        with must_work("tracing"):
            raise trial.trace_error
    if trial.is_compiled:
        raise Undecided(FIRST_ONLY)
    programs, plain = trial.programs, trial.plain
    avals = programs.jaxpr.out_avals
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in avals]
    traced, wanted = (
        jtu.tree_map(_struct, tree) for tree in (programs.output(structs), plain)
    )
    agree_in_struct(traced, wanted, ("traced", "plain"))
    with must_work("the compiled function"):
        compiled = programs.value(trial.leaves)
    # Python numbers are compared above.
    arrays = jtu.tree_leaves(eqx.filter(plain, eqx.is_array))
    if len(arrays) == len(compiled):
        names = programs.out_names
        got, wanted = (dict(zip(names, v, strict=True)) for v in (compiled, arrays))
        agree(got, wanted, ("compiled", "plain"), trial.tolerance)


def _struct(leaf: Any) -> Any:
    """Return the struct of a Python number as an array; arrays unchanged."""
    if isinstance(leaf, bool | int | float | complex):
        return jtu.tree_leaves(eqx.filter_eval_shape(lambda: leaf))[0]
    return leaf


@law("recompiles", "a second call of the same types compiles nothing.")
def recompiles_law(trial: Trial) -> str | None:
    _check_metadata(trial)
    programs = trial.programs
    big = [v for v in programs.constants if v.nbytes > _MOST_BYTES]
    if big:
        raise Broken(
            f"an array of {big[0].nbytes / 2**20:.1f} MB ({big[0].dtype}"
            f"{list(big[0].shape)}) is compiled into the program; hold it in a field, "
            "or take it as an argument"
        )
    if trial.is_compiled:
        raise Undecided(FIRST_ONLY)
    # JAX compiles a loop or a branch outside `jit` at each call.
    if _compiles_anew(programs.jaxpr):
        return "a loop or branch outside of `jit` compiles at each call"
    note = _compiled_again(trial)
    _compiled_for_numbers(trial)
    return note


def _compiled_again(trial: Trial) -> str | None:
    """Raise `Broken` if a second call compiles; return a note if a package does."""
    compiled = trial.again[1]
    if not compiled:
        return None
    if any(name.startswith(" > jax.config") for name in trial.changed()):
        raise Undecided("a call changes `jax.config`, which is part of each program")
    jitted = [
        eqn
        for eqn in trial.programs.equations
        if eqn.primitive.name == "jit" and f"jit({eqn.params['name']})" in compiled
    ]
    line = next(filter(None, (user_line(lines_of(eqn)) for eqn in jitted)), "")
    if jitted and all(is_installed(_file_of(eqn)) for eqn in jitted):
        return (
            f"outside of `jit` each call compiles {names_of(compiled)}{line}, which an "
            "installed package compiles for each new function that it is given"
        )
    raise Broken(
        f"each call compiles {names_of(compiled)}{line}; create the jitted function, "
        "and functions that it takes as static arguments, once, outside of the call"
    )


def _file_of(eqn: Equation) -> str:
    """Return the file of the function that was jitted, from an equation inside it."""
    outside = lines_of(eqn)
    for inner in equations(eqn.params["jaxpr"]):
        lines = lines_of(inner)
        files = outside_equinox(lines[: len(lines) - len(outside)])
        if files:
            return files[-1]
    return outside[0][0] if outside else ""


def _check_metadata(trial: Trial) -> None:
    """Raise `Broken` if the structure of an argument is unequal to itself."""
    for name, tree in {**trial.call.args, "fn": trial.call.fn}.items():
        node = _unlike_itself(tree)
        if node is not None:
            raise Broken(
                f"the metadata of `{type(node).__name__}` is unequal to itself, so "
                "each call compiles; define its `__eq__` and `__hash__`",
                name,
            )


def _unlike_itself(tree: PyTree) -> PyTree:
    """Return the innermost node whose structure is unequal to itself, or `None`."""
    if jtu.all_leaves([tree]):
        return None
    for child in jtu.tree_leaves(tree, is_leaf=lambda node: node is not tree):
        inner = _unlike_itself(child)
        if inner is not None:
            return inner
    return None if jtu.tree_structure(tree) == jtu.tree_structure(tree) else tree


def _compiled_for_numbers(trial: Trial) -> None:
    """Raise `Broken` if another Python number compiles the same program again.

    A size, an axis or a count of a loop makes another program, and has to be static.
    """
    leaves, structure = jtu.tree_flatten(trial.call.args)
    names = [name for name, _ in leaves_with_names(trial.call.args)]
    for i, leaf in enumerate(leaves):
        if type(leaf) not in (int, float):
            continue
        others = [*leaves[:i], leaf + 1, *leaves[i + 1 :]]
        args = jtu.tree_unflatten(structure, others)
        call: Call = dataclasses.replace(trial.call, args=args)
        try:
            with compilations() as compiled:
                call.run()
            is_same = compiled and _outline(Programs(call)) == _outline(trial.programs)
        except Exception:  # another number is invalid
            continue
        if is_same:
            raise Broken(
                f"each value of `{names[i]}` compiles {names_of(compiled)}, which "
                "differ by this number alone; pass an array, or make it not static",
                f"args.{names[i]}",
            )


def _outline(programs: Programs) -> list[Any]:
    """Return the equations of a program without literals, constants and functions."""

    def text(value: Any) -> str:
        shown = repr(value)
        return "" if "lambda" in shown or " at 0x" in shown else shown

    return [
        (
            eqn.primitive.name,
            [(name, text(value)) for name, value in eqn.params.items()],
            [str(v.aval) for v in (*eqn.invars, *eqn.outvars)],
        )
        for eqn in programs.equations
    ]


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


@law("params", "each array of a module, and its gradient, reach the output.")
def params_law(trial: Trial) -> None:
    programs, leaves = trial.programs, trial.leaves
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
