"""The laws that are decided by the equations of the traced program."""

import functools as ft
import itertools as it
import linecache
import re
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.core import Tracer
from jax.errors import KeyReuseError
from jax.typing import DTypeLike

from ..._captured import JITTED, contents
from ..._jaxprs import (
    Equation,
    Flow,
    interpret,
    kind,
    open_jaxpr,
    rebind,
    sub_jaxprs,
    within,
)
from ..._stage import Lift
from ..._tree import leaf_text
from .law import Broken, Undecided, error_line, law
from .trial import Programs, Trial, file_of, is_installed, lines_of, user_line


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
    draws = not programs.primitives.isdisjoint(DRAWS)
    marks = [name == "key" for name in programs.names]
    if draws and not any(Flow().run(programs.jaxpr, marks)):
        raise Broken("it draws random numbers, and the output does not depend on `key`")
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
            place = _place(error) if function is programs.function else ""
            raise Broken(f"one key is used twice{place}; split it") from None


_SAME = ("random_fold_in", "random_unwrap", "random_wrap")


def _is_choice(eqn: Equation) -> bool:
    """Return whether an equation is a choice of this package, not a `cond`."""
    return kind(eqn) == "branches" and eqn.primitive.name != "cond"


def _with_same_keys(jaxpr: Any) -> Callable[..., list[Any]]:
    """Return a program in which keys that are computed alike are one key.

    JAX does not know that equal numbers folded into a key make the same key, nor
    follows bits of a key, or keys in a choice of this package.
    """
    known: dict[Any, Any] = {}

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
        if token not in known:
            known[token] = rebind(eqn, inputs), inputs  # which keeps the `id`
            if name == "random_unwrap":
                known["random_wrap", id(known[token][0][0])] = inputs, known[token]
        return known[token][0]

    return lambda *inputs: interpret(jaxpr, inputs, rule)


def _selects(jaxpr: Any) -> bool:
    """Return whether an operation selects between values of different draws."""
    numbers, found = it.count(), []
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
            found.append(sum(map(bool, alone)) > 1)
        draws = any(inner.primitive.name in DRAWS for inner in within(eqn))
        own = frozenset([next(numbers)]) if draws else nothing
        return [own.union(*marks)] * len(eqn.outvars)

    interpret(jaxpr, [nothing] * len(jaxpr.in_avals), rule, lambda _: nothing)
    return any(found)


def _place(error: KeyReuseError) -> str:
    """Return the user's line of the second use, from JAX's message."""
    frames: list[Any] = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        cause = cause.__cause__
    libraries = [str(m.__file__).rpartition("__init__")[0] for m in (jax, eqx)]
    own = [f for f in frames if not f.filename.startswith(tuple(libraries))]
    return f" at {own[-1].filename}:{own[-1].lineno}" if own else ""


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
    suspects = [
        is_meant
        for is_meant, other in zip(meant, shapes, strict=True)
        if shape is None or shape[1] == other
    ]
    if suspects and all(suspects):
        return f"an index is out of bounds, by a `mode` that was chosen: {text}"
    raise Broken(f"{text}; clip it, or name a `mode` if this is meant")


_NEGATIVE = r"index (-\d+)( is out of bounds for axis \d+ with size (\d+))"


def _as_written(found: re.Match[str]) -> str:
    """Return a negative index as it was before JAX added the size of the axis."""
    return f"index {int(found[1]) - int(found[3])}{found[2]}"


def _is_meant(eqn: Equation) -> bool:
    """Return whether the source line sets a `mode`, or is in an installed package."""
    if eqn.params.get("mode") == jax.lax.GatherScatterMode.CLIP:
        return True
    file, line = next(iter(lines_of(eqn)), ("", 0))
    return is_installed(file) or "mode=" in linecache.getline(file, line)
