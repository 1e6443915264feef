"""The laws of plain, compiled, batched and split calls."""

import dataclasses
import functools as ft
import operator
import sys
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from ..._jaxprs import Equation, equations, kind, open_jaxpr, sub_jaxprs
from ..._stage import Lift
from ..._tree import is_key_array, leaves_with_names
from ..._types import PyTree
from .compilations import compilations, names_of
from .law import (
    FIRST_ONLY,
    Broken,
    Undecided,
    agree,
    agree_in_struct,
    error_line,
    law,
    must_hold,
    must_work,
    stacked,
)
from .trial import (
    Call,
    Indices,
    Programs,
    Trial,
    is_installed,
    is_of_user,
    lines_of,
    user_line,
)


@law("pure", "the same arguments give the same bits, and a call changes nothing.")
def pure_law(trial: Trial) -> None:
    for name, tree in {**trial.call.args, "fn": trial.call.fn}.items():
        leaves, structure = jtu.tree_flatten(tree)
        again = jtu.tree_leaves(jtu.tree_unflatten(structure, leaves))
        if all(map(operator.is_, again, leaves)):
            continue
        how = f"flattening and unflattening a `{type(tree).__name__}` changes it"
        with must_hold(how, name):
            agree(again, leaves, ("afterwards", "before"))
    # The function was traced before: a tracer that it left in a cache fails now.
    with must_work("a call after a trace"):
        first = trial.plain
    with must_work("reading the arguments after a call"):  # fails if one was donated
        _changed_nothing(trial)
    if trial.is_compiled:
        raise Undecided(FIRST_ONLY)
    again, _ = trial.again
    agree(again, first, ("the second time", "the first time"))
    _changed_nothing(trial)


def _changed_nothing(trial: Trial) -> None:
    """Raise `Broken` if the calls changed an argument or the function."""
    with must_hold("a call changed its arguments"):
        agree(trial.passed, trial.call.args, ("after the call", "before"))
    for name in trial.changed():
        raise Broken(
            f"a call changed `fn{name}`; return what later calls need, or keep it in "
            "an `equinox.nn.State` (a cache: `functools.cache`)"
        )


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
        if len(lines) > len(outside):
            return lines[-len(outside) - 1][0]
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


@law("vmap", "`jax.vmap` over arguments, or over modules, agrees with a loop.")
def vmap_law(trial: Trial) -> str | None:
    programs = trial.programs
    groups = _groups(programs)
    if not groups:
        raise Undecided("there are no arrays to batch")
    value, names = programs.value, programs.out_names
    every = frozenset().union(*groups.values())
    # JAX batches its own operations one by one: only a rule may depend on which of its
    # arguments, or whose gradient, is batched.
    has_rules = _has_rules(trial)
    notes = [
        _like_a_loop(trial, which, f"`vmap` over {how}", value, names)
        for how, which in (groups if has_rules else {"all arrays": every}).items()
    ]
    note = _gradients(trial, every) if has_rules else None
    return note or next(filter(None, notes), None)


def _has_rules(trial: Trial) -> bool:
    """Return whether there is a rule or callback outside of installed packages.

    All rules count for a function of an installed package.
    """
    fn = trial.call.fn.fn if isinstance(trial.call.fn, Lift) else trial.call.fn
    named = fn if hasattr(fn, "__module__") else type(fn)
    module = sys.modules.get(str(getattr(named, "__module__", "")))
    installed = is_installed(str(getattr(module, "__file__", "")))
    return any(
        (installed or is_of_user(eqn))
        and (eqn.primitive.name.startswith("custom_") or kind(eqn) in _OPAQUE)
        for eqn in trial.programs.equations
    )


_OPAQUE = (None, "other", "callback")


def _groups(programs: Programs) -> dict[str, Indices]:
    """Return the leaves to batch: each argument, all arguments, and the parameters."""
    groups: dict[str, set[int]] = {}
    others, module = set[int](), set[int]()
    for i, name in enumerate(programs.names):
        kind, _, rest = name.partition(".")
        if kind == "args":
            groups.setdefault(f"`{rest.partition('.')[0]}`", set()).add(i)
        if kind != "fn":
            others.add(i)
        elif i in programs.moving:
            module.add(i)
    if groups and others not in groups.values():
        groups["all arguments"] = others
    if module:
        groups["the module"] = module
    return {how: frozenset(which) for how, which in groups.items()}


def _gradients(trial: Trial, which: Indices) -> str | None:
    """Compare `vmap` of the gradient with a loop, if there is a gradient."""
    programs = trial.programs
    if not programs.moving or not programs.smooth:
        return None
    cotangents = programs.cotangents()

    def gradient(leaves: list[Any], **batched: Indices) -> list[Any]:
        return programs.backward(leaves, cotangents, **batched)[1]

    try:
        gradient(trial.leaves)
    except Exception:  # reported by the law `derivative`
        return None
    names = programs.moving_names
    return _like_a_loop(trial, which, "`vmap` of the gradient", gradient, names)


def _like_a_loop(
    trial: Trial,
    which: Indices,
    how: str,
    run: Callable[..., list[Any]],
    names: list[str],
) -> str | None:
    """Raise `Broken` if a batch of lanes differs from a loop over the lanes."""
    first = trial.lanes[0]
    every = range(len(first))
    lanes = [[v[i] if i in which else first[i] for i in every] for v in trial.lanes]
    taken, outputs = [], []
    for lane in lanes:
        try:
            outputs.append(run(lane))
            taken.append(lane)
        except Exception:  # these arguments are invalid, for instance by `error_if`
            continue
    if len(taken) < 2:
        raise Undecided("the function raises for other inputs, so lanes would be equal")
    inputs = [
        stacked([lane[i] for lane in taken]) if i in which else first[i] for i in every
    ]
    try:
        values = run(inputs, batched=which)
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error
    wanted = [stacked(column) for column in zip(*outputs, strict=True)]
    # Output keys stay keys; `agree` compares their bits.
    kept = [i for i, v in enumerate(values) if not is_key_array(v)]
    got, loop = ({names[i]: v[i] for i in kept} for v in (values, wanted))
    agree(got, loop, (f"by {how}", "in a loop"), trial.tolerance)
    dropped = len(lanes) - len(taken)
    return f"it raises for {dropped} of {len(lanes)} lanes" if dropped else None


@law("devices", "rows split over several devices give the same as on one device.")
def devices_law(trial: Trial) -> str | None:
    programs, leaves = trial.programs, trial.leaves
    is_split = [
        name.removeprefix("args.").partition(".")[0] in trial.rows
        for name in programs.names
    ]
    sizes = {v.shape[0] for v, split in zip(leaves, is_split, strict=True) if split}
    counts = [n for n in (4, 3, 2) if n <= jax.device_count()]
    counts = [n for n in counts if all(size % n == 0 for size in sizes)]
    if not counts:
        raise Undecided(
            f"2 to 4 of {jax.device_count()} devices do not divide the rows"
        )
    if not all(programs.jaxpr.out_avals[i].ndim for i in programs.smooth):
        raise Undecided("an output has no rows")
    rows, whole = PartitionSpec("rows"), PartitionSpec()
    specs = [rows if split else whole for split in is_split]
    cotangents = programs.cotangents()
    try:
        value, grads = programs.backward(leaves, cotangents)
    except Exception:  # reported by the law `derivative`
        value, grads = programs.smooth_of(programs.value(leaves)), None

    def run(leaves: Any) -> list[Any]:
        return programs.smooth_of(programs.retraced(*leaves))

    def gradient(run: Any, leaves: Any, weights: list[Any]) -> list[Any]:
        moving = [leaves[i] for i in programs.moving]
        return jax.vjp(programs.of_moving(leaves, run), moving)[1](weights)[0]

    for count in (1, counts[0]):
        mesh = Mesh(np.array(jax.devices()[:count]), ("rows",))
        split = ft.partial(jax.shard_map, mesh=mesh)
        outside = split(run, in_specs=(specs,), out_specs=rows)
        inside = split(
            ft.partial(gradient, run),
            in_specs=(specs, rows),
            out_specs=[specs[i] for i in programs.moving],
        )
        parts: dict[str, Any] = {"the values": (outside, value)}
        if grads is not None:
            around = ft.partial(gradient, outside)
            parts["the gradient outside"] = around, grads
            parts["the gradient inside"] = inside, grads
        for what, (fn, wanted) in parts.items():
            how = f"{what} of `shard_map` on {count} devices"
            args = (leaves,) if fn is outside else (leaves, cotangents)
            names = programs.smooth_names if fn is outside else programs.moving_names
            with must_work(how):
                got = jax.tree.map(np.asarray, jax.jit(fn)(*args))
            left, right = (dict(zip(names, v, strict=True)) for v in (got, wanted))
            agree(left, right, (f"by {how}", "without it"), trial.tolerance)
    return None if grads is not None else "without gradients"
