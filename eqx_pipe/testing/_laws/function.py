"""The laws of a function, and their check at given arguments, in one report.

They are about plain, compiled, batched and split calls, and about the program. The laws
of derivatives are in `derivative.py`.
"""

import contextlib
import dataclasses
import functools as ft
import inspect
import itertools as it
import linecache
import math
import operator
import re
import traceback
import types
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.core import Tracer
from jax.errors import KeyReuseError, UnexpectedTracerError
from jax.sharding import Mesh, PartitionSpec
from jax.typing import DTypeLike

from ..._captured import JITTED, contents
from ..._check import check_callable, check_choice, check_is
from ..._errors import MissingKeyError, type_error, value_error
from ..._jaxprs import (
    Equation,
    Flow,
    equations,
    interpret,
    is_literal,
    kind,
    open_jaxpr,
    rebind,
    scan_counts,
    sub_jaxprs,
    within,
)
from ..._keys import check_key, parameters
from ..._stage import (
    Composite,
    Lift,
    Scope,
    as_module,
    check_state,
    copy_state,
    is_stateful,
    wants_key,
)
from ..._tree import is_key_array, join_path, leaf_text, leaves_with_names
from ..._types import AnyJaxpr, Key, PyTree, StageLike
from .derivative import derivative_law, finite_law
from .law import (
    FIRST_ONLY,
    Bound,
    Broken,
    Call,
    Indices,
    Law,
    Programs,
    Tolerance,
    Trial,
    Undecided,
    agree,
    agree_in_struct,
    agree_with_reference,
    check_names,
    check_reference,
    compilations,
    copied,
    error_line,
    file_of,
    function_text,
    is_installed,
    is_of_user,
    law,
    lines_of,
    must_hold,
    must_work,
    names_of,
    outcome,
    stacked,
    trial_of,
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
    _changed_nothing(trial)
    if trial.is_compiled:
        raise Undecided(FIRST_ONLY)
    again, _ = trial.again
    agree(again, first, ("the second time", "the first time"))
    _changed_nothing(trial)


def _changed_nothing(trial: Trial) -> None:
    """Raise `Broken` if the calls changed an argument or the function."""
    for name, leaf in leaves_with_names(trial.passed):
        if isinstance(leaf, jax.Array) and leaf.is_deleted():
            what = "a call donates it, so its caller cannot use it any more; leave out "
            what += "`donate_argnums` or `donate=` here, and donate where it is called"
            raise Broken(what, name)
    with must_hold("a call changed its arguments"):
        agree(trial.passed, trial.call.args, ("after the call", "before"))
    for name in trial.changed():
        where = f"fn.{name}" if name else "fn"
        raise Broken(
            f"a call changed `{where}`; return what later calls need, or keep it in "
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
    both = programs.output(structs), plain
    traced, wanted = (jtu.tree_map(_struct, tree) for tree in both)
    agree_in_struct(traced, wanted, ("traced", "plain"))
    with must_work("the compiled function"):
        compiled = programs.value(trial.leaves)
    # Python numbers are compared above.
    arrays = jtu.tree_leaves(eqx.filter(plain, eqx.is_array))
    if len(arrays) == len(compiled):
        names = programs.out_names
        got, wanted = (dict(zip(names, v, strict=True)) for v in (compiled, arrays))
        agree(got, wanted, ("compiled", "plain"), trial.tolerance)


def _struct(leaf: object) -> Any:
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
    if any(name.startswith("jax.config") for name in trial.changed()):
        raise Undecided("a call changes `jax.config`, which is part of each program")
    jits = [e for e in trial.programs.equations if e.primitive.name == "jit"]
    jitted = [e for e in jits if f"jit({e.params['name']})" in compiled]
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
        nodes: list[Any] = []  # parents before their children
        visit: Any = nodes.append
        jtu.tree_leaves(tree, is_leaf=visit)
        structure = jtu.tree_structure
        wrong = [node for node in nodes if structure(node) != structure(node)]
        if wrong:
            what = f"the metadata of `{type(wrong[-1]).__name__}` is unequal to "
            what += "itself, so each call compiles; define its `__eq__` and `__hash__`"
            raise Broken(what, name)


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
            what = f"each value of `{names[i]}` compiles {names_of(compiled)}, which "
            what += "differ by this number alone; pass an array, or make it not static"
            raise Broken(what, f"args.{names[i]}")


def _outline(programs: Programs) -> list[Any]:
    """Return the equations of a program without literals, constants and functions."""

    def text(value: object) -> str:
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


def _compiles_anew(jaxpr: AnyJaxpr) -> bool:
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
    module = inspect.getmodule(fn if hasattr(fn, "__module__") else type(fn))
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
    trial: Trial, which: Indices, how: str, run: Callable[..., list], names: list[str]
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
    with must_work(how):
        values = run(inputs, batched=which)
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
    arguments = [n.removeprefix("args.").partition(".")[0] for n in programs.names]
    is_split = [name in trial.rows for name in arguments]
    sizes = {v.shape[0] for v, split in zip(leaves, is_split, strict=True) if split}
    counts = [n for n in (4, 3, 2) if n <= jax.device_count()]
    counts = [n for n in counts if all(size % n == 0 for size in sizes)]
    if not counts:
        what = f"2 to 4 of {jax.device_count()} devices do not divide the rows"
        raise Undecided(what)
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
        alone, moving = ft.partial(gradient, run), [specs[i] for i in programs.moving]
        inside = split(alone, in_specs=(specs, rows), out_specs=moving)
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


DRAWS = ("random_bits", "random_unwrap", "random_gamma", "threefry2x32")


@law("key", "draws come from `key`, and no key is used twice.")
def key_law(trial: Trial) -> None:
    programs = trial.programs
    marks = [name == "key" for name in programs.names]
    if _draws(programs) and not any(Flow().run(programs.jaxpr, marks)):
        raise Broken("it draws random numbers, and the output does not depend on `key`")
    for copies in _drawn_copies(programs.jaxpr):
        raise Broken(
            "several draws use one key, of which an array has copies"
            f"{user_line(lines_of(copies))}; split it: `jax.random.split(key, num)`"
        )
    chooses = any(map(_is_choice, programs.equations))
    functions = [] if chooses else [programs.function]
    if chooses or not programs.primitives.isdisjoint(_SAME):
        functions.append(_with_same_keys(programs.jaxpr))
    for function in functions:
        try:
            # JAX tracks keys while tracing; nothing is compiled.
            with jax.debug_key_reuse(True):
                jax.jit(function).trace(*trial.leaves)
        except KeyReuseError as error:
            # Under `vmap` both branches of a `cond` run with the same key.
            if _selects(programs.jaxpr):
                why = "it selects between draws, which may share a key"
                raise Undecided(why) from None
            line = _line(error) if function is programs.function else ""
            raise Broken(f"one key is used twice{line}; split it") from None


def _draws(programs: Programs) -> bool:
    """Return whether draws reach the output.

    A choice under `vmap` takes the bits of a key, and its branches may ignore them.
    """
    if programs.primitives.isdisjoint(DRAWS):
        return False
    return any(_Draws().run(programs.jaxpr, [False] * len(programs.names)))


class _Draws(Flow):
    """The flow of values that are drawn."""

    def equation(self, eqn: Equation, marks: list[bool]) -> list[bool]:
        """Return which outputs of an equation depend on draws."""
        if eqn.primitive.name in DRAWS:
            return [True] * len(eqn.outvars)
        if any(inner.primitive.name in DRAWS for inner in within(eqn)):
            return self.through(eqn, marks)
        return super().equation(eqn, marks)


_COPIES = ("broadcast_in_dim", "gather", "reshape", "squeeze", "transpose")


def _drawn_copies(jaxpr: AnyJaxpr) -> list[Equation]:
    """Return the equations that copy a key, such as to broadcast it, if copies draw.

    JAX takes an array of keys for several keys. Copies are marked by their equation. A
    choice, and the loop of a batch, may copy a key by themselves, so their outputs are
    not marked.
    """
    drawn: list[Equation] = []

    def rule(eqn: Equation, marks: list[Equation | None]) -> list[Equation | None]:
        name = eqn.primitive.name
        avals: list[Any] = [v.aval for v in (*eqn.invars, *eqn.outvars)]
        for body in sub_jaxprs(eqn):
            if kind(eqn) == "call":
                return interpret(body, marks, rule, lambda _: None)
            inputs: list[Any] = [None] * len(open_jaxpr(body)[0].invars)
            if kind(eqn) == "scan":
                carried = sum(scan_counts(eqn))
                inputs[carried:] = marks[carried:]
            interpret(body, inputs, rule, lambda _: None)
        copies = marks[0] if marks else None
        if copies and name in (*DRAWS, "random_split"):
            drawn.append(copies)
        if name == "random_fold_in":
            is_one = marks[1] or is_literal(eqn.invars[1])
            copies = copies if is_one or avals[1].ndim < avals[0].ndim else None
        elif name not in _COPIES:
            copies = None
        elif avals[0].size == 1 < avals[-1].size:
            copies = eqn
        return [copies] * len(eqn.outvars)

    interpret(jaxpr, [None] * len(jaxpr.in_avals), rule, lambda _: None)
    return drawn


_SAME = ("random_fold_in", "random_unwrap", "random_wrap")


def _is_choice(eqn: Equation) -> bool:
    """Return whether an equation is a choice of this package, not a `cond`."""
    return kind(eqn) == "branches" and eqn.primitive.name != "cond"


def _with_same_keys(jaxpr: AnyJaxpr) -> Callable[..., list[Any]]:
    """Return a program in which keys that are computed alike are one key.

    JAX does not know that equal numbers folded into a key make the same key, nor
    follows bits of a key, or keys in a choice of this package.
    """
    made: dict[Any, Any] = {}

    def rule(eqn: Equation, inputs: list[Any]) -> Any:
        name = eqn.primitive.name
        if kind(eqn) == "call":
            return interpret(next(sub_jaxprs(eqn)), inputs, rule)
        if _is_choice(eqn):
            branches = list(map(_with_same_keys, eqn.params["branches"]))
            return jax.lax.switch(jnp.asarray(inputs[0], int), branches, *inputs[1:])
        if name not in _SAME:
            return rebind(eqn, inputs)
        token = name, *(id(v) if isinstance(v, Tracer) else str(v) for v in inputs)
        if token not in made:
            made[token] = rebind(eqn, inputs), inputs  # which keeps the `id`
            if name == "random_unwrap":
                made["random_wrap", id(made[token][0][0])] = inputs, made[token]
        return made[token][0]

    return lambda *inputs: interpret(jaxpr, inputs, rule)


def _selects(jaxpr: AnyJaxpr) -> bool:
    """Return whether an operation selects between values of different draws."""
    numbers, selections = it.count(), []
    nothing: frozenset[int] = frozenset()

    def rule(eqn: Equation, marks: list[frozenset[int]]) -> list[frozenset[int]]:
        """Return the draws on which each output of an equation depends."""
        if kind(eqn) == "call":
            return interpret(next(sub_jaxprs(eqn)), marks, rule, lambda _: nothing)
        if eqn.primitive.name == "select_n":
            cases = marks[1:]
            alone = [
                a - nothing.union(*(b for b in cases if b is not a)) for a in cases
            ]
            selections.append(sum(map(bool, alone)) > 1)
        draws = any(inner.primitive.name in DRAWS for inner in within(eqn))
        drawn = frozenset([next(numbers)]) if draws else nothing
        return [drawn.union(*marks)] * len(eqn.outvars)

    interpret(jaxpr, [nothing] * len(jaxpr.in_avals), rule, lambda _: nothing)
    return any(selections)


def _line(error: KeyReuseError) -> str:
    """Return the user's line of the second use, from JAX's message."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    return user_line([(f.filename, f.lineno or 0) for f in reversed(frames)])


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
    (input_dtype,) = dtypes
    base = _forms_of(trial.programs)
    if not any(getattr(v, "weak_type", False) for v in inexact):
        for name, form in base.items():
            if form.weak_type:
                raise Broken(_WEAK.format(form.dtype), name)
    by_dtype, where = {input_dtype: base}, {input_dtype: ""}
    # There are no half-precision complex numbers.
    is_complex = any(jnp.issubdtype(v.dtype, jnp.complexfloating) for v in inexact)
    dtypes = {np.dtype(d) for d in (_DTYPES[::2] if is_complex else _DTYPES)}
    for dtype in sorted(dtypes - {input_dtype}, key=str):
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
    for source in (input_dtype, np.dtype(np.float32)):
        forms = by_dtype.get(source, {})
        follow = [n for n, form in forms.items() if _real(form.dtype) == source]
        for dtype, name in it.product(by_dtype, follow):
            got = getattr(by_dtype[dtype].get(name), "dtype", dtype)
            # A complex output of a real input has no half precision.
            nearest = got == jnp.complex64 and dtype.itemsize == 2
            if _real(got) != dtype and not nearest:
                what = f"it is {got} for an input of {dtype.name}{where[dtype]}, and "
                what += f"{forms[name].dtype} for one of {source.name}; create the "
                what += "arrays and draws that it uses in "
                what += f"`x.dtype`{_closed_over(trial)}"
                raise Broken(what, name)
    refused = {d.name for d in dtypes} - {d.name for d in by_dtype}
    return f"{', '.join(sorted(refused))} cannot be judged" if refused else None


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


def _single_arrays(fn: object, depth: int = 0) -> Iterator[tuple[str, Any]]:
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


def _lines(
    program: AnyJaxpr, dtype: np.dtype, outer: Lines = (("", 0),)
) -> Iterator[Lines]:
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


_INDEXED = ("gather", "scatter", "dynamic_slice", "dynamic_update_slice")


@law("index", "no index lies outside of its array, where JAX clamps or drops it.")
def index_law(trial: Trial) -> str | None:
    programs = trial.programs
    indexed = [e for e in programs.equations if e.primitive.name.startswith(_INDEXED)]
    meant = [_is_meant(eqn) for eqn in indexed]
    if all(is_installed(file_of(eqn)) for eqn in indexed):
        return None
    try:
        error = programs.index_error(trial.leaves).get()
    except Exception as error:  # such as for gathers with batching dims in JAX 0.12
        raise Undecided(f"JAX's `checkify` raises {error_line(error)}") from error
    if error is None:
        return None
    text = re.sub(_NEGATIVE, _as_written, " ".join(error.split()).removesuffix("."))
    # JAX's message has the shape of the array, but not the operation.
    shape = re.search(r"shape (\(.*?\))", text)
    shapes = [str(getattr(eqn.invars[0].aval, "shape", "")) for eqn in indexed]
    pairs = zip(meant, shapes, strict=True)
    suspects = [m for m, other in pairs if shape is None or shape[1] == other]
    if suspects and all(suspects):
        return f"an index is out of bounds, by a `mode` that was chosen: {text}"
    raise Broken(f"{text}; clip it, or name a `mode` if this is meant")


_NEGATIVE = r"index (-\d+)( is out of bounds for axis \d+ with size (\d+))"


def _as_written(match: re.Match[str]) -> str:
    """Return a negative index as it was before JAX added the size of the axis."""
    return f"index {int(match[1]) - int(match[3])}{match[2]}"


def _is_meant(eqn: Equation) -> bool:
    """Return whether the source line sets a `mode`, or is in an installed package."""
    if eqn.params.get("mode") == jax.lax.GatherScatterMode.CLIP:
        return True
    file, line = next(iter(lines_of(eqn)), ("", 0))
    return is_installed(file) or "mode=" in linecache.getline(file, line)


LAWS = (pure_law, jit_law, recompiles_law, params_law, key_law, dtype_law)
LAWS += (vmap_law, finite_law, index_law, derivative_law, devices_law)
"""The laws in the order in which they are checked: cheap ones first."""


_FUNCTION = "testing.check_function"
NAMES = ("reference", *(law.name for law in LAWS))


def check_function(
    fn: Callable[..., PyTree],
    *args: PyTree,
    kwargs: Mapping[str, PyTree] | None = None,
    state: State | None = None,
    key: Key | None = None,
    reference: Callable[..., PyTree] | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
    rows: Collection[str] = (),
    rtol: Bound = None,
    atol: Bound = None,
) -> dict[str, str]:
    """Check a function, layer or pipeline at the given arguments by all laws.

    | law | requires |
    |---|---|
    | `reference` | the output of `reference`, if it is given |
    | `pure` | the same bits for the same arguments; nothing is written or donated |
    | `jit` | the same structure and values when it is compiled |
    | `recompiles` | a second call compiles nothing; no constant above 1 MB |
    | `params` | each array of a module, and its gradient, reach the output |
    | `key` | draws depend on `key=`, if it is given; no key is used twice |
    | `dtype` | half, single and double precision are kept; no weak type |
    | `vmap` | a batch of arguments, or a stack of modules, agrees with a loop |
    | `finite` | finite numbers give no NaN, no overflow, and finite derivatives |
    | `index` | no index is out of bounds, where JAX clamps or drops it |
    | `derivative` | first and second derivatives agree with finite differences |
    | `devices` | rows split over devices give the same, if `rows=` is given |

    The function is traced once per precision; all laws, and later checks of the same
    function with arguments of the same types, share the compiled programs. `derivative`
    leaves out elements at kinks, and a verdict of `"holds"` alone means that forward
    mode, reverse mode and second derivatives were compared. The laws cannot know your
    intent: `skip` those that a `stop_gradient`, a straight-through estimator or similar
    code breaks on purpose.

    **Arguments:**

    - `fn`: a function, or a module that can be called.
    - `args`: its positional arguments. Arrays in them are differentiated and batched;
        other leaves stay fixed.
    - `kwargs`: its keyword arguments, such as all those that
        `eqx_pipe.testing.arguments(fn)` draws. (Keyword only.)
    - `state`: an `equinox.nn.State`. `fn` gets it as its parameter `state`, or else by
        position after `args`, and returns a pair of its output and the new state. A
        state among `args` is the same. (Keyword only.)
    - `key`: a PRNG key, passed to `fn` as `key=`. (Keyword only.)
    - `reference`: a function of the same arguments that returns the same numbers, for
        instance in NumPy, in any precision. If it takes a state as `fn` does, it also
        returns the new state, or its arrays; without a state it may. (Keyword only.)
    - `only`, `skip`: the names of laws to check, and to leave out. (Keyword only.)
    - `rows`: the names of arguments with a leading axis of rows, which `fn` maps one by
        one: the function is compared on one device and on up to four, under
        `jax.shard_map`, with gradients inside and outside. (Keyword only.)
    - `rtol`, `atol`: numbers may differ by `atol` plus `rtol` times the largest number
        in the array. The defaults depend on the dtype. (Keyword only.)

    **Returns:** a dict from the name of each checked law to `"holds"`, with a note if
    there is one, or `"undecided"` with the reason.

    **Raises:**

    - `AssertionError` if laws are broken; it lists each broken law, the difference, and
      the stage of a pipeline that breaks it.
    - `ValueError` for an unknown name in `only` or `skip`.
    - The error that the function itself raises for these arguments.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp, numpy as np
        >>> verdicts = ept.check_function(jnp.hypot, jnp.ones(2), jnp.array([2.0, 3.0]))
        >>> verdicts["derivative"]
        'holds'
        >>> @jax.custom_jvp
        ... def square(x):
        ...     return x**2
        >>> @square.defjvp
        ... def half_of_it(x, t):
        ...     return x[0] ** 2, x[0] * t[0]
        >>> ept.check_function(square, jnp.ones(2), reference=np.square)
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.check_function`: `square` breaks 1 law of ...
          - `derivative`: first and second derivatives agree with finite differences.
            leaf: `x`
            difference: forward mode gives ... at [0], but finite differences give ...
        ...
    """
    __tracebackhide__ = True
    check_reference(_FUNCTION, reference)
    for name, bound in (("rtol", rtol), ("atol", atol)):
        cure = "Give a number of at least 0, or None for a bound that suits the dtype."
        check_is(_FUNCTION, name, bound, int | float | None, cure)
        if bound is not None and not 0 <= bound < math.inf:
            raise value_error(_FUNCTION, f"`{name}` is {bound}.", cure)
    check_callable(_FUNCTION, "fn", fn, "Give a function, or a stage of a pipeline.")
    cure = "Give a dict of arguments by name: `kwargs={'x': jnp.ones(3)}`."
    kwargs = {} if kwargs is None else kwargs
    check_is(_FUNCTION, "kwargs", kwargs, Mapping, cure)
    cure = "Give a tuple of names: `rows=('x',)`."
    check_is(_FUNCTION, "rows", rows, tuple | list | set, cure)
    named = dict(kwargs)
    if key is None and is_key_array(named.get("key")):
        key = named.pop("key")
    check_key(_FUNCTION, key)
    args, state, index = _without_state(args, state)
    check_state(_FUNCTION, as_module(fn), state)
    if state is not None and index is None:
        index = _state_index(fn, len(args), named)
        if index is None:
            wrong = f"`{function_text(fn)}` takes {len(args)} arguments by position "
            wrong += "and no `state`, and got one."
            cure = "Give it a parameter `state`, or leave out `state=`."
            raise type_error(_FUNCTION, wrong, cure)
    names = _names(fn, len(args), index)
    in_order = [name for name in names if name != "state"]
    inputs = as_jax_sees({**dict(zip(in_order, args, strict=True)), **named})
    options = {"reference": reference, "key": key, "devices": rows or None}
    tried = check_names(_FUNCTION, "only", NAMES if only is None else only, NAMES)
    tried -= check_names(_FUNCTION, "skip", skip, NAMES)
    tried -= {name for name, option in options.items() if option is None}
    for name in rows:
        check_choice(_FUNCTION, "rows", name, inputs)
    call = Call(as_module(fn), inputs, state, key, names)
    trial = trial_of(call, Tolerance(rtol, atol), tuple(rows))
    # Traced first: a plain call could fill a cache in which a trace leaves a tracer.
    _ = trial.trace_error
    leaks = not _first_call(trial)
    laws = [pure_law] if leaks else [law for law in LAWS if law.name in tried]
    if "reference" in tried and not leaks:
        assert reference is not None
        laws.insert(0, _reference_law(reference, args, named, state))
    verdicts = {law.name: outcome(law, trial, "a call") for law in laws}
    broken = {n: how for n, how in verdicts.items() if isinstance(how, Broken)}
    if broken:
        tests = {law.name: law for law in laws}
        inner = {n: locate(tests[n], trial, how) for n, how in broken.items()}
        raise AssertionError(_report(fn, laws, verdicts, inner, inputs))
    return {n: str(how) + _emptiness(n, inputs) for n, how in verdicts.items()}


_OF_NUMBERS = ("reference", "vmap", "finite", "index", "derivative")


def _emptiness(law: str, inputs: PyTree) -> str:
    """Return a note on arguments without elements, at which some laws show nothing."""
    empty = [n for n, v in leaves_with_names(inputs) if np.size(v) == 0]
    if law not in _OF_NUMBERS or not empty:
        return ""
    return f"; {', '.join(f'`{name}`' for name in empty)} has no elements"


def _without_state(
    args: tuple[PyTree, ...], state: State | None
) -> tuple[tuple[PyTree, ...], State | None, int | None]:
    """Return the arguments without a state, the state, and its position, if any."""
    positions = [i for i, value in enumerate(args) if isinstance(value, State)]
    if state is not None or len(positions) != 1:
        return args, state, None
    (i,) = positions
    return (*args[:i], *args[i + 1 :]), args[i], i


def _positional(fn: Callable[..., Any]) -> list[str]:
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return [p.name for p in parameters(fn).values() if p.kind in kinds]


def _state_index(
    fn: Callable[..., Any], count: int, named: Collection[str]
) -> int | None:
    """Return the position of the state, `count + 1` or more by keyword, or `None`."""
    signature, names = parameters(fn), _positional(fn)
    if "state" in signature:
        return names.index("state") if "state" in names else count + 1
    free = [name for name in names if name not in {*named, "key"}]
    several = any(p.kind is p.VAR_POSITIONAL for p in signature.values())
    return count if several or not signature or len(free) > count else None


def _names(fn: Callable[..., Any], count: int, index: int | None) -> tuple[str, ...]:
    """Return the names of `count` positional arguments, and of a state among them."""
    names = _positional(fn)
    if index is not None and index < len(names):
        del names[index]
    names = [*names[:count], *(f"argument{i}" for i in range(len(names), count))]
    if index is not None and index <= count:
        names.insert(index, "state")
    return tuple(names)


def as_jax_sees(tree: PyTree) -> PyTree:
    """Convert arrays and scalars of NumPy to the dtypes that JAX would use.

    Without `jax_enable_x64` JAX converts 64 bits to 32. A plain call would keep 64 bits
    in NumPy, and the law `jit` would report a difference.
    """

    def narrowed(leaf: object) -> Any:
        if not isinstance(leaf, np.ndarray | np.generic):
            return leaf
        return leaf.astype(jax.dtypes.canonicalize_dtype(leaf.dtype), copy=False)

    return jtu.tree_map(narrowed, tree)


def _first_call(trial: Trial) -> bool:
    """Call the function; its own errors are raised before any law is checked.

    Return False if it fails by a tracer that a trace left behind.
    """
    try:
        _ = trial.plain
    except UnexpectedTracerError:
        return False
    except Exception as error:
        if trial.call.key is None and wants_key(error, trial.call.fn):
            raise MissingKeyError("fn") from error
        error.add_note(f"In the plain call that `eqx_pipe.{_FUNCTION}` makes first.")
        raise
    return True


def _reference_law(
    reference: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    named: Mapping[str, PyTree],
    state: State | None,
) -> Law:
    """Return the law that compares the output, and the new state if there is one."""
    index = None if state is None else _state_index(reference, len(args), named)
    if index is not None:
        state = copy_state(state)
        named = {**named, **({"state": state} if index > len(args) else {})}
        before, after = args[:index], args[index:]
        args = args if index > len(args) else (*before, state, *after)

    def test(trial: Trial) -> str | None:
        with must_work("the reference"):
            wanted = reference(*args, **named)
        result, tolerance = trial.plain, trial.tolerance
        output, has_state = result["output"], "state" in result
        is_pair = isinstance(wanted, tuple) and len(wanted) == 2
        if index is not None and has_state and not is_pair:
            raise Broken("the reference takes a state, but does not return a new one")
        # A reference that takes no state may return the new one, too.
        alone = jtu.tree_structure(wanted) == jtu.tree_structure(output)
        if not has_state or not is_pair or (index is None and alone):
            agree_with_reference(output, wanted, tolerance=tolerance)
            return "the new state was not compared" if state is not None else None
        agree_with_reference(output, wanted[0], tolerance=tolerance)
        with must_hold("the new state"):
            new, wanted = map(jtu.tree_leaves, (result["state"], wanted[1]))
            agree_with_reference(new, wanted, tolerance=tolerance)
        return None

    return Law("reference", "it returns what the reference returns.", test)


def _report(
    fn: Callable[..., Any],
    laws: list[Law],
    verdicts: Mapping[str, str | Broken],
    broken: Mapping[str, tuple[str, Trial, Broken]],
    args: Mapping[str, PyTree],
) -> str:
    """Return all findings, with the stage and its input if it is inside a pipeline."""
    count = "1 law" if len(broken) == 1 else f"{len(broken)} laws"
    name = function_text(fn)
    lines = [f"`eqx_pipe.{_FUNCTION}`: `{name}` breaks {count} of {len(verdicts)}:"]
    rules = {law.name: law.rule for law in laws}
    for law_name, (path, trial, how) in broken.items():
        lines.append(f"  - `{law_name}`: {rules[law_name]}")
        if path:
            stage = function_text(trial.call.fn)
            lines.append(f"    stage: `{path}` ({stage})")
            lines.append(f"    its input: {input_text(trial.call.args)}")
        leaf = how.leaf.removeprefix("args.").removeprefix("fn.").removeprefix("fn.")
        lines += [f"    leaf: `{leaf}`"] if leaf else []
        lines.append(f"    difference: {how.what}")
    lines.append(f"  arguments: {input_text(args)}")
    names = ", ".join(map(repr, broken)) + ("," if len(broken) == 1 else "")
    lines.append(f"  If this is meant: `skip=({names})`.")
    return "\n".join(lines)


def locate(law: Law, trial: Trial, how: Broken) -> tuple[str, Trial, Broken]:
    """Return the path of the innermost stage that breaks the law, with its trial."""
    for name, inner in _trials_inside(trial).items():
        try:
            _ = inner.plain
            with must_work("a call"):
                law.test(inner)
        except Broken as inner_how:
            path, inner, inner_how = locate(law, inner, inner_how)
            return join_path(name, path) if path else name, inner, inner_how
        except Exception:
            continue
    return "", trial, how


def _trials_inside(trial: Trial) -> dict[str, Trial]:
    """Return a trial for each child of a composite, with its inputs from a plain call.

    The branches of `cond` and similar stages are left out: their inputs are traced.
    """
    seen: dict[str, Trial] = {}

    def watch(
        name: str,
        stage: StageLike,
        args: tuple[PyTree, ...],
        state: Any,
        key: Any,
        named: dict[str, PyTree],
    ) -> None:
        # In a loop or under `vmap` the inputs are tracers, so no law can be checked.
        leaves = jtu.tree_leaves((args, named, state, key))
        if name in seen or any(isinstance(v, Tracer) for v in leaves):
            return
        part = copy_state(state) if is_stateful(stage) else None
        names = ("x",) if len(args) == 1 else tuple(f"x{i}" for i in range(len(args)))
        inputs = {**dict(zip(names, args, strict=True)), **named}
        names += ("state",) if part is not None and not named else ()
        part_call = Call(stage, inputs, part, key, names)
        seen[name] = trial_of(part_call, trial.asked_tolerance)

    call = trial.call
    if isinstance(call.fn, Composite) and len(call.args) == 1:
        (x,) = jtu.tree_map(copied, list(call.args.values()))
        with contextlib.suppress(Exception):
            call.fn.run(x, copy_state(call.state), Scope(call.key, watch=watch))
    return seen


def input_text(tree: PyTree) -> str:
    """Return an input as text: values of small arrays, shapes of large arrays."""
    named = leaves_with_names(tree)
    shown = [f"{name}: {_value_text(v)}".removeprefix(": ") for name, v in named[:6]]
    return ", ".join(shown + ["..."] * (len(named) > 6)) or "nothing"


def _value_text(leaf: object) -> str:
    if not hasattr(leaf, "dtype") or is_key_array(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
