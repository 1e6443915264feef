"""Laws, comparisons of pytrees, and trials: calls of a function under test.

A `Trial` has a call of the function, its trace, and the compiled programs that all laws
share.
"""

import collections
import contextlib
import dataclasses
import functools as ft
import re
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax import numpy_dtype_promotion
from jax.core import Tracer
from jax.experimental import checkify
from jax.typing import DTypeLike

from ..._check import check_choice, check_int, check_is
from ..._jaxprs import (
    Equation,
    as_function,
    equations,
    open_jaxpr,
    sub_jaxprs,
    used_inputs,
)
from ..._jit import Static, arrays_in, shared
from ..._keys import key_argument
from ..._same import Fixed, named_parts
from ..._stage import Lift, Scope, call, copy_state, is_composite
from ..._tree import differences, is_key_array, leaves_with_names
from ..._types import Key, PyTree


class Broken(Exception):
    """A law is broken: the difference, and the leaf at which it occurs."""

    def __init__(self, what: str, leaf: str = ""):
        super().__init__(what)
        self.what, self.leaf = what, leaf


class Undecided(Exception):
    """A law cannot be decided, with the reason."""


FIRST_ONLY = "each plain call compiles, so it was judged at the first arguments only"


@contextlib.contextmanager
def must_work(how: str) -> Iterator[None]:
    """Raise `Broken` if the block raises; `how` describes the block."""
    try:
        yield
    except (Broken, Undecided):
        raise
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error


@contextlib.contextmanager
def must_hold(how: str, leaf: str = "") -> Iterator[None]:
    """Put `how` before the difference of a `Broken` that the block raises."""
    try:
        yield
    except Broken as broken:
        where = leaf or broken.leaf
        raise Broken(f"{how}: {broken.what}", where) from None


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    short = line if len(line) < 200 else line[:200] + "..."
    return f"{type(error).__name__}: {short}"


@dataclasses.dataclass(frozen=True)
class Law:
    """A rule in words, and a test that raises `Broken` if it does not hold.

    `test(trial)` may return a note, and raises `Undecided` if it cannot decide.
    """

    name: str
    rule: str
    test: Callable[[Any], str | None]


def law(name: str, rule: str) -> Callable[[Callable[[Any], str | None]], Law]:
    """Decorate a test to make it a law."""
    return ft.partial(Law, name, rule)


def outcome(law: Law, trial: object, kind: str) -> str | Broken:
    """Return the `Broken` of a law, or the text that it holds or is undecided.

    `kind` names the subject of the law, as in "an axis".
    """
    try:
        with must_work(kind):
            note = law.test(trial)
    except Broken as how:
        return how
    except Undecided as why:
        return f"undecided: {why}"
    return f"holds; {note}" if note else "holds"


def laws_of(kind: type) -> list[Law]:
    """Return the laws of a class of trials, in their order."""
    return [value for value in vars(kind).values() if isinstance(value, Law)]


def check_laws(
    function: str, kind: str, trial: Any, where: str = "", laws: list[Law] | None = None
) -> None:
    """Raise an `AssertionError` for the first law that is broken.

    `where` is the type of the subject. By default all laws of the trial's class are
    checked.
    """
    __tracebackhide__ = True
    for law in laws_of(type(trial)) if laws is None else laws:
        # Raised outside an `except` block: Hypothesis treats errors with different
        # contexts as different errors, and would not shrink one to the other.
        how = outcome(law, trial, kind)
        if isinstance(how, Broken):
            leaf = [f"leaf: `{how.leaf}`"] if how.leaf else []
            subject = [f"where: {where}"] if where else []
            lines = [*subject, *leaf, f"difference: {how.what}"]
            head = f"the law `{law.name}` of {kind} is broken: {law.rule}"
            text = "\n  ".join([f"`eqx_pipe.testing.{function}`: {head}", *lines])
            raise AssertionError(text) from how.__cause__


def check_names(
    function: str, option: str, names: Collection[str], laws: Collection[str]
) -> set[str]:
    """Return names of laws as a set; raise if one is unknown."""
    cure = f"Give a tuple of names of laws: `{option}=('derivative',)`."
    check_is(function, option, names, tuple | list | set | frozenset, cure)
    for name in names:
        check_choice(function, option, name, laws)
    return set(names)


_RELATIVE = {"float64": 1e-9, "complex128": 1e-9, "float32": 1e-4, "complex64": 1e-4}
_RELATIVE |= {"float16": 1e-2, "bfloat16": 5e-2}


AnyArray: TypeAlias = jax.Array | np.ndarray | np.generic
"""An array, of JAX or NumPy."""

Bound: TypeAlias = int | float | None
"""A tolerance for differences of numbers; `None` for a default by dtype."""

Labels: TypeAlias = tuple[str, str]
"""Names for the computations of two pytrees, for messages."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """The tolerance of two numbers: `atol + rtol * (largest in the array)`.

    `None` stands for a default by dtype, or by `coarsest` if that has fewer digits. It
    is relative to the largest number, not to each, so sums that cancel to about zero
    raise no false alarm.
    """

    rtol: Bound = None
    atol: Bound = None
    coarsest: str = "float64"

    def allowed(self, dtype: DTypeLike, largest: float) -> float:
        """Return the tolerance for an array of a dtype."""
        # The precision of float8_e5m2, which has two mantissa bits.
        rest = 0.25 if jnp.issubdtype(dtype, jnp.inexact) else 0.0
        usual = _RELATIVE.get(str(dtype), rest)
        usual = max(usual, _RELATIVE.get(self.coarsest, 0.0)) if usual else usual
        rtol = usual if self.rtol is None else self.rtol
        atol = usual / 10 if self.atol is None else self.atol
        return atol + rtol * largest


EXACT = Tolerance(0.0, 0.0)
USUAL = Tolerance()


def check_reference(function: str, reference: object) -> None:
    """Raise a `TypeError` unless `reference` is `None` or can be called."""
    if reference is not None:
        cure = "Give a function that makes the same numbers in another way."
        check_is(function, "reference", reference, Callable, cure)


def agree(
    got: PyTree, wanted: PyTree, labels: Labels, tolerance: Tolerance = EXACT
) -> None:
    """Raise `Broken` for the first leaf at which two pytrees differ."""
    agree_in_struct(got, wanted, labels)
    _agree_in_numbers(got, wanted, labels, tolerance)


def agree_with_reference(
    got: PyTree, wanted: PyTree, where: str = "", tolerance: Tolerance = USUAL
) -> None:
    """Raise `Broken` if a reference differs; it may have wider dtypes."""
    labels = (f"found {where}".strip(), "by the reference")
    form, other = jtu.tree_structure(got), jtu.tree_structure(wanted)
    if form != other:
        raise Broken(f"{form} {labels[0]}, {other} {labels[1]}")
    _agree_in_numbers(got, wanted, labels, tolerance)


def _agree_in_numbers(
    got: PyTree, wanted: PyTree, labels: Labels, tolerance: Tolerance
) -> None:
    pairs = zip(leaves_with_names(got), jtu.tree_leaves(wanted), strict=True)
    for (name, a), b in pairs:
        if not eqx.is_array_like(a) or not eqx.is_array_like(b):
            continue
        a, b = (v if is_key_array(v) else np.asarray(v) for v in (a, b))
        what = _gap(a, b, tolerance, labels)
        if what:
            raise Broken(what, name)


def agree_in_struct(got: PyTree, wanted: PyTree, labels: Labels) -> None:
    """Raise `Broken` if structures, shapes or dtypes differ."""
    lines = differences(_structs(got), _structs(wanted))
    if lines:
        leaf = lines[0].partition("`.")[2].partition("`")[0]
        what = f"{'; '.join(lines)} ({labels[0]} against {labels[1]})"
        raise Broken(what, leaf)


def as_numpy(leaf: AnyArray) -> np.ndarray:
    """Return a NumPy array of a dtype that supports subtraction; keys as bits."""
    if is_key_array(leaf):
        return np.asarray(jr.key_data(jnp.asarray(leaf)))
    for kind, wide in ((jnp.floating, float), (jnp.complexfloating, complex)):
        if jnp.issubdtype(leaf.dtype, kind):
            return np.asarray(leaf).astype(wide)
    return np.asarray(leaf)


def _structs(tree: PyTree) -> PyTree:
    """Replace arrays by shapes and dtypes, and drop functions."""

    def struct(leaf: Any) -> Any:
        if eqx.is_array(leaf):
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
        return "a function" if callable(leaf) else leaf

    return jtu.tree_map(struct, tree)


def _gap(a: AnyArray, b: AnyArray, tolerance: Tolerance, labels: Labels) -> str | None:
    """Return the largest difference of two arrays as text; `None` if it is allowed."""
    if a.shape != b.shape:
        return f"shape {list(a.shape)} {labels[0]}, {list(b.shape)} {labels[1]}"
    left, right = as_numpy(a), as_numpy(b)
    apart, allowed = (left != right).astype(float), 0.0
    is_inexact = left.dtype.kind in "fc"
    if is_inexact:
        largest = np.max(np.abs(right[np.isfinite(right)]), initial=0.0)
        allowed = tolerance.allowed(a.dtype, float(largest))
        # Equal infinities agree, although their difference is NaN.
        same = (left == right) | (np.isnan(left) & np.isnan(right))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.where(same, 0.0, np.abs(left - right))
        # A NaN on one side only is never allowed.
        apart = np.where(np.isnan(apart), np.inf, apart)
    wrong = apart > allowed
    if not wrong.any():
        return None
    index = np.unravel_index(int(np.argmax(apart)), apart.shape)
    numbers = f"{left[index]:.6g} {labels[0]}, {right[index]:.6g} {labels[1]}"
    if is_inexact and np.isfinite(apart[index]):
        numbers += f"; {apart[index]:.3g} apart, {allowed:.2g} allowed"
    if not index:
        return numbers
    at = ", ".join(map(str, index))
    return f"{wrong.sum()} of {wrong.size} elements differ, most at [{at}]: {numbers}"


def stack(trees: Sequence[PyTree]) -> PyTree:
    """Stack the arrays of pytrees; other leaves come from the first pytree."""

    def join(*leaves: Any) -> Any:
        if eqx.is_array_like(leaves[0]) and not isinstance(leaves[0], str):
            return stacked(leaves)
        return leaves[0]

    return jtu.tree_map(join, *trees)


def stacked(leaves: Sequence[Any]) -> Any:
    """Stack arrays without compiling anything; new-style keys compile a program."""
    if is_key_array(leaves[0]):
        data: Any = np.stack([np.asarray(jr.key_data(v)) for v in leaves])
        return jr.wrap_key_data(data, impl=jr.key_impl(leaves[0]))
    return np.stack([np.asarray(v) for v in leaves])


# JAX also sends this event for a program that it finds in its cache on disk.
_EVENT = "/jax/core/compile/backend_compile_duration"
_names: list[str] = []


@ft.cache
def _listen() -> None:
    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            _names.append(str(kwargs.get("fun_name", "a program")))

    jax.monitoring.register_event_duration_secs_listener(note)


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of programs compiled inside the block; filled at its end."""
    _listen()
    names: list[str] = []
    before = len(_names)
    try:
        yield names
    finally:
        names += _names[before:]


@contextlib.contextmanager
def assert_compiles(at_most: int) -> Iterator[None]:
    """Check that at most `at_most` programs are compiled inside the block.

    Everything that XLA compiles counts: functions under `jax.jit`, and each operation
    outside `jit`. A program that JAX has in memory is not compiled again; a program
    that JAX finds in its cache on disk counts, since it would be compiled on another
    machine.

    **Arguments:**

    - `at_most`: the number of programs that may be compiled; 0 for a second call.

    **Returns:** a context manager.

    **Raises:** `AssertionError` if more programs are compiled, with their names. Errors
    raised inside the block are raised unchanged.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> step = jax.jit(lambda w: w - 0.1 * jnp.sin(w))
        >>> w = step(jnp.ones(3))
        >>> with ept.assert_compiles(0):
        ...     w = step(w)
        >>> with ept.assert_compiles(0):
        ...     w = jax.jit(lambda w: w - 0.1)(w)
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.assert_compiles`: expected at most 0 ...
    """
    __tracebackhide__ = True
    check_int("testing.assert_compiles", "at_most", at_most, 0)
    with compilations() as names:
        yield
    if len(names) > at_most:
        limit = f"{at_most} compilation{'s' * (at_most != 1)}"
        raise AssertionError(
            f"`eqx_pipe.testing.assert_compiles`: expected at most {limit}, got "
            f"{len(names)}: {names_of(names)}. A function made at each call, a "
            "shape or dtype that changes, or an operation outside of `jax.jit` is "
            "compiled again."
        )


def names_of(programs: list[str]) -> str:
    """Return the names of programs, each once, with the number of compilations."""
    counts = collections.Counter(programs)
    shown = [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]
    return ", ".join(shown[:8] + ["..."] * (len(shown) > 8))


Leaves: TypeAlias = Sequence[Any]

Indices: TypeAlias = frozenset[int]

_QUICK = {"xla_backend_optimization_level": 0}
"""Options for programs that run a few times: most of the cost is compilation."""


class Call(eqx.Module):
    """A function with its arguments by name.

    `positional` lists the names of the arguments that are passed by position. A state
    among them has the name `"state"`; otherwise it is passed by keyword.
    """

    fn: Any
    args: dict[str, PyTree]
    state: State | None = None
    key: Key | None = None
    positional: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self) -> dict[str, PyTree]:
        """Return the output, and the new state if the function returns one."""
        named = dict(self.args)
        if is_composite(self.fn):
            args = tuple(named.pop(n) for n in self.positional if n != "state")
            state = copy_state(self.state)
            y, new = call(self.fn, args, state, Scope(self.key), named)
            return {"output": y} if self.state is None else {"output": y, "state": new}
        if self.state is not None:
            named["state"] = copy_state(self.state)  # an update invalidates a state
        fn = self.fn.fn if isinstance(self.fn, Lift) else self.fn
        if "key" not in named and self.key is not None:
            named |= {"key": self.key} if not named else key_argument(fn, self.key)
        args = tuple(named.pop(name) for name in self.positional)
        return split_state(fn(*args, **named))


def split_state(result: PyTree) -> dict[str, PyTree]:
    """Return an output, and the new state if the result is a pair with a state."""
    is_pair = isinstance(result, tuple) and len(result) == 2
    if is_pair and isinstance(result[1], State):
        return {"output": result[0], "state": result[1]}
    return {"output": result}


def _compiled(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method run as a compiled program, which may have batched leaves."""

    @ft.wraps(fn)
    def run(self: "Programs", *args: Leaves, batched: Indices = frozenset()) -> Any:
        method = ft.wraps(fn)(ft.partial(fn, self))
        return self._run(method, batched, *args)

    return run


class Programs:
    """The programs for calls with one structure, shapes and dtypes.

    The function itself is called once, to be traced. Arrays are passed and returned as
    NumPy arrays: compiled programs take them directly, while `jnp.asarray` would
    compile a program to convert them.

    `moving` has the positions of the differentiable leaves, and `smooth` those of the
    differentiable outputs, both without the state, which training does not
    differentiate. `inexact` has the positions of all floating-point and complex
    outputs.
    """

    def __init__(self, call: Call):
        arrays, static = eqx.partition(call, eqx.is_array)
        leaves, structure = jtu.tree_flatten(arrays)
        form: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            whole = eqx.combine(jtu.tree_unflatten(structure, leaves), static)
            outputs, rest = eqx.partition(whole.run(), eqx.is_array)
            form[:] = [jtu.tree_structure(outputs), rest]
            return jtu.tree_leaves(outputs)

        self.jaxpr: Any = jax.make_jaxpr(flat)(*leaves)
        self._form, self.retraced = tuple(form), flat
        self.is_wide = is_wide()
        self.names = [name for name, _ in leaves_with_names(arrays)]
        avals = self.jaxpr.out_avals
        outs = self.output([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
        kinds = jax.ShapeDtypeStruct
        self.out_names = [n for n, v in leaves_with_names(outs) if isinstance(v, kinds)]
        self.moving = [i for i in _inexact(leaves) if not _of_state(self.names[i])]
        self.inexact = _inexact(avals)
        self.smooth = [i for i in self.inexact if not _of_state(self.out_names[i])]
        self.moving_names = [self.names[i] for i in self.moving]
        self.smooth_names = [self.out_names[i] for i in self.smooth]
        self.function: Callable[..., list[Any]] = as_function(self.jaxpr)
        self.equations = list(equations(self.jaxpr))
        self.iterates = _iterates(self.equations)
        self.primitives = {eqn.primitive.name for eqn in self.equations}
        computed = [v.aval for eqn in self.equations for v in eqn.outvars]
        dtypes = {getattr(v, "dtype", int) for v in [*self.jaxpr.in_avals, *computed]}
        self.dtypes = [v for v in dtypes if jnp.issubdtype(v, jnp.inexact)]
        # Set if a second plain call compiles: later checks run the program instead.
        self.compiles_anew = False
        self._compiled: dict[Hashable, Callable[..., Any]] = {}
        # Tracing a derivative that does not exist takes long.
        self._absent: dict[Hashable, Exception] = {}

    def output(self, leaves: Leaves) -> Any:
        """Return the outputs in the structure that the function returns."""
        return eqx.combine(jtu.tree_unflatten(self._form[0], leaves), self._form[1])

    def cotangents(self) -> list[np.ndarray]:
        """Return fixed weights for the smooth outputs."""
        avals = [self.jaxpr.out_avals[i] for i in self.smooth]
        return [direction(k, aval) for k, aval in enumerate(avals)]

    @_compiled
    def value(self, leaves: Leaves) -> list[Any]:
        """Return the outputs."""
        return self.function(*leaves)

    @_compiled
    def forward(self, leaves: Leaves, tangents: Leaves) -> Any:
        """Return the smooth outputs and their tangents."""
        return jax.jvp(self.of_moving(leaves), (self._moving(leaves),), (tangents,))

    @_compiled
    def backward(self, leaves: Leaves, cotangents: Leaves) -> Any:
        """Return the smooth outputs, and the cotangents of the moving leaves."""
        return self._pull(leaves, self._moving(leaves), cotangents)

    @_compiled
    def second(self, leaves: Leaves, tangents: Leaves, cotangents: Leaves) -> Any:
        """Return the results of `backward`, and the tangents of its cotangents."""
        pull = ft.partial(self._pull, leaves, cotangents=cotangents)
        first, (_, change) = jax.jvp(pull, (self._moving(leaves),), (tangents,))
        return first, change

    @_compiled
    def index_error(self, leaves: Leaves) -> Any:
        """Return the error of `checkify` for an index that is out of bounds."""
        checked = checkify.checkify(self.function, errors=checkify.index_checks)
        return checked(*leaves)[0]

    def _moving(self, leaves: Leaves) -> list[Any]:
        return [leaves[i] for i in self.moving]

    def _pull(self, leaves: Leaves, moving: Leaves, cotangents: Leaves) -> Any:
        value, pull = jax.vjp(self.of_moving(leaves), moving)
        return value, pull(cotangents)[0]

    def smooth_of(self, outputs: list[Any]) -> list[Any]:
        """Return the outputs that can be differentiated."""
        return [outputs[i] for i in self.smooth]

    def of_moving(
        self, leaves: Leaves, run: Callable[[Leaves], list[Any]] | None = None
    ) -> Callable[[Leaves], list[Any]]:
        """Return the smooth outputs of the program, or of `run`, by moving leaves."""

        def fn(moving: Leaves) -> list[Any]:
            every = list(leaves)
            for i, v in zip(self.moving, moving, strict=True):
                every[i] = v
            return run(every) if run else self.smooth_of(self.function(*every))

        return fn

    def partial(self, leaves: Leaves, cotangents: Leaves, only: int, of: str) -> list:
        """Return the gradient of one moving leaf, or of one smooth output.

        The other leaves, or the cotangents of the other outputs, are symbolic zeros.
        """

        def gradient(leaves: Leaves, cotangents: Leaves) -> list[Any]:
            fn, moving = self.of_moving(leaves), self._moving(leaves)
            if of == "output":
                return jax.vjp(lambda v: fn(v)[only], moving)[1](cotangents[only])[0]

            def alone(leaf: object) -> list[Any]:
                return fn([*moving[:only], leaf, *moving[only + 1 :]])

            return list(jax.vjp(alone, moving[only])[1](cotangents))

        gradient.__name__ = f"{of} {only}"
        return self._run(gradient, frozenset(), leaves, cotangents)

    @property
    def constants(self) -> list[Any]:
        """The arrays that the program closes over, in inner jaxprs too."""
        inner = [j for eqn in self.equations for j in sub_jaxprs(eqn)]
        arrays = [v for j in (self.jaxpr, *inner) for v in open_jaxpr(j)[1]]
        return [v for v in arrays if hasattr(v, "nbytes") and not is_key_array(v)]

    def _run(self, fn: Callable[..., Any], batched: Indices, *args: Leaves) -> Any:
        """Run a program, batched over some leaves; it is compiled once."""
        name = (fn.__name__, batched)
        if name not in self._compiled:
            axes = [0 if i in batched else None for i in range(len(self.names))]
            over = jax.vmap(fn, (axes, *[None] * (len(args) - 1))) if batched else fn
            # The law `jit` judges the program as users compile it.
            plain = name == ("value", frozenset())
            options = None if plain or jax.default_backend() != "cpu" else _QUICK
            self._compiled[name] = jax.jit(over, compiler_options=options)
        if name in self._absent:
            raise self._absent[name]
        try:
            with jax.enable_x64(self.is_wide):
                outputs = self._compiled[name](*map(list, args))
                return jtu.tree_map(as_numpy_or_key, outputs)
        except Exception as error:
            if is_absent(error):
                self._absent[name] = error
            raise


def is_absent(error: Exception) -> bool:
    """Return whether JAX or Equinox says that a derivative does not exist."""
    text = str(error).partition("\n")[0]
    return isinstance(error, NotImplementedError) or bool(_ABSENT.search(text))


_ABSENT = re.compile(r"(forward|reverse)-mode|not support JVP|autodifferentiat", re.I)


def _iterates(equations: Sequence[Equation]) -> bool:
    """Return whether a loop ends by a computed condition, not after a fixed count."""
    for eqn in equations:
        if eqn.primitive.name == "while":
            test = eqn.params["cond_jaxpr"]
            read = zip(open_jaxpr(test)[0].invars, used_inputs(test), strict=True)
            dtypes = [v.aval.dtype for v, is_read in read if is_read]
            if not all(jnp.issubdtype(dtype, jnp.integer) for dtype in dtypes):
                return True
    return False


def direction(seed: int, like: Any, scaled_by: Any = None) -> Any:
    """Return numbers between 0.5 and 1 of either sign, the same in every call.

    They are scaled by the numbers that they will change.
    """
    rng = np.random.default_rng(seed)
    # Not near zero, which would move nothing.
    drawn = rng.uniform(0.5, 1, like.shape) * rng.choice([-1, 1], like.shape)
    if jnp.issubdtype(like.dtype, jnp.complexfloating):
        drawn = drawn * np.exp(1j * rng.uniform(0, 2 * np.pi, like.shape))
    if scaled_by is not None:
        size = np.abs(np.asarray(scaled_by).astype(drawn.dtype))
        usual = (size > 0) & np.isfinite(size)
        drawn = drawn * np.where(usual, np.maximum(size, 0.01), 1)
    return np.asarray(drawn).astype(like.dtype)


def _of_state(name: str) -> bool:
    """Return whether a leaf of a call, or of its outputs, belongs to its state."""
    return name.partition(".")[0] == "state"


def _inexact(values: Leaves) -> list[int]:
    return [i for i, v in enumerate(values) if jnp.issubdtype(v.dtype, jnp.inexact)]


def is_wide() -> bool:
    """Return whether double precision is enabled in the current context."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def as_numpy_or_key(leaf: object) -> Any:
    """Return an array as a NumPy array, but keys unchanged."""
    return leaf if is_key_array(leaf) else np.asarray(leaf)


def programs_of(call: Call) -> Programs:
    """Return the programs of a call, cached if possible.

    In a property test all examples of one structure share them.
    """
    avals = tuple(
        (v.shape, str(v.dtype), getattr(v, "weak_type", False)) for v in arrays_in(call)
    )
    kind = "check", avals, is_wide()
    return shared(kind, Static(call), lambda: Programs(call))


@dataclasses.dataclass(frozen=True)
class Trial:
    """A call under test.

    Results that several laws need are cached, since a plain call compiles its loops
    each time, and compiling takes longer than running.
    """

    call: Call
    asked_tolerance: Tolerance = Tolerance()
    before: dict[str, Any] = dataclasses.field(default_factory=dict)
    rows: tuple[str, ...] = ()

    @ft.cached_property
    def passed(self) -> PyTree:
        """Copies of the arguments, for the plain calls, which may write to them."""
        return jtu.tree_map(copied, self.call.args)

    @ft.cached_property
    def plain(self) -> dict[str, PyTree]:
        """The result of the first plain call."""
        if self.is_compiled:
            return self.programs.output(self.programs.value(self.leaves))
        result = dataclasses.replace(self.call, args=self.passed).run()
        return jtu.tree_map(copied, result)

    @ft.cached_property
    def again(self) -> tuple[dict[str, PyTree], list[str]]:
        """The result of a second plain call, and the programs that it compiled."""
        _ = self.plain
        args = jtu.tree_map(copied, self.call.args)
        with compilations() as compiled:
            result = dataclasses.replace(self.call, args=args).run()
        if self.trace_error is None:
            self.programs.compiles_anew = bool(compiled)
        return jtu.tree_map(copied, result), compiled

    @ft.cached_property
    def is_compiled(self) -> bool:
        """True if the compiled program replaces plain calls, since each one compiles.

        Plain calls of the same function, with arguments of the same types, were checked
        before.
        """
        return self.trace_error is None and self.programs.compiles_anew

    def changed(self) -> list[str]:
        """Return the names of values of the function that differ from before."""
        after = held(self.call.fn)
        names = {**after, **self.before}
        return [n for n in names if after.get(n, ...) != self.before.get(n, ...)]

    @property
    def leaves(self) -> list[Any]:
        """The arrays of the call."""
        return arrays_in(self.call)

    @ft.cached_property
    def _traced(self) -> Programs | Exception:
        try:
            return programs_of(self.call)
        except Exception as error:
            return error

    @property
    def programs(self) -> Programs:
        """The programs of the call; `Undecided` if it cannot be traced."""
        if isinstance(self._traced, Exception):
            raise Undecided("the function cannot be traced") from self._traced
        return self._traced

    @property
    def trace_error(self) -> Exception | None:
        """The error that tracing raises, or `None`."""
        return self._traced if isinstance(self._traced, Exception) else None

    @ft.cached_property
    def wide(self) -> "Trial | None":
        """The same call in double precision, or `None` if it cannot be traced."""
        return self.in_dtype(np.float64)

    def in_dtype(self, real: DTypeLike) -> "Trial | None":
        """Return the same call in another precision, or `None` if it cannot be traced.

        Arrays that the function closes over are promoted.
        """
        x64 = jax.enable_x64(real == np.float64 or is_wide())
        with contextlib.suppress(Exception), x64, numpy_dtype_promotion("standard"):
            other = Trial(cast(self.call, real), self.asked_tolerance)
            _ = other.programs
            return other
        return None

    @ft.cached_property
    def lanes(self) -> list[list[Any]]:
        """The leaves of the call, the leaves rolled by one, and rolled and halved."""
        leaves = self.leaves
        return [leaves, list(map(moved, leaves)), list(map(halved, leaves))]

    @ft.cached_property
    def tolerance(self) -> Tolerance:
        """The tolerance; that of half precision if the function computes in it.

        Half-precision rounding inside a float32 function depends on XLA's fusion. An
        iterative solver has an error of the same size: rounding changes its steps.
        """
        if isinstance(self._traced, Exception) or self.asked_tolerance != Tolerance():
            return self.asked_tolerance
        names = {np.dtype(dtype).name for dtype in self._traced.dtypes}
        names |= {"float16"} if self._traced.iterates else set()
        coarse = [name for name in ("bfloat16", "float16") if name in names]
        return Tolerance(coarsest=coarse[0]) if coarse else Tolerance()


def trial_of(call: Call, tolerance: Tolerance, rows: tuple[str, ...] = ()) -> Trial:
    """Return a trial that has recorded the function's values before any call."""
    return Trial(call, tolerance, held(call.fn), rows)


def cast(tree: PyTree, real: DTypeLike) -> PyTree:
    """Cast inexact arrays to a real dtype, or to the complex dtype of its precision.

    Arrays of a `frozen` stage are cast too: they should have the stage's precision.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Fixed):
            return Fixed(one(leaf.value)) if eqx.is_inexact_array(leaf.value) else leaf
        if not eqx.is_inexact_array(leaf):
            return leaf
        is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
        dtype = jnp.result_type(real, jnp.complex64) if is_complex else real
        with np.errstate(over="ignore"):  # numbers may overflow in half precision
            # `jnp.asarray` would compile a program for each shape.
            return jax.device_put(np.asarray(leaf).astype(dtype))

    return jtu.tree_map(one, tree)


def copied(leaf: object) -> Any:
    """Return a copy of an array, through NumPy, which compiles nothing."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return leaf
    # NumPy would lose the key, the weak type or the sharding.
    if is_key_array(leaf) or leaf.weak_type or len(leaf.devices()) > 1:
        return leaf
    return jax.device_put(np.array(leaf))


def moved(leaf: object, by: int = 1) -> Any:
    """Return an array with its elements rolled; keys unchanged."""
    return leaf if is_key_array(leaf) else np.roll(np.asarray(leaf), by)


def halved(leaf: Any) -> Any:
    """Return an array rolled the other way, and halved if inexact."""
    leaf = moved(leaf, -1)
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    half = np.asarray(0.5, leaf.dtype) if inexact else None
    return leaf if half is None else np.asarray(leaf * half).astype(leaf.dtype)


def function_text(fn: object) -> str:
    """Return the name of a function, or of a module's type."""
    fn = fn.fn if isinstance(fn, Lift) else fn
    return getattr(fn, "__name__", type(fn).__name__)


def held(stage: object) -> dict[str, Any]:
    """Return a comparable token, by name, for each value that a stage holds."""
    stage = stage.fn if isinstance(stage, Lift) else stage
    # Each program depends on the configuration.
    config = {f"jax.config.{k}": repr(v) for k, v in jax.config.values.items()}
    return {**named_parts(stage), **config}


def lines_of(eqn: Equation) -> list[tuple[str, int]]:
    """Return the files and lines that made an equation, innermost first.

    Those in JAX, and in Equinox's transformations, are left out.
    """
    trace: Any = eqn.source_info.traceback
    frames = [] if trace is None else trace.frames
    lines = [(frame.file_name, frame.line_num) for frame in frames]
    return [
        (file, line)
        for file, line in lines
        if not file.startswith(_TRANSFORMING) or file.startswith(_LAYERS)
    ]


_TRANSFORMING = tuple(str(m.__file__).rpartition("__init__")[0] for m in (jax, eqx))
_LAYERS = tuple(f"{_TRANSFORMING[1]}{name}" for name in ("nn", "internal"))


def is_installed(file: str) -> bool:
    """Return whether a file belongs to an installed package."""
    return "site-packages" in file


def file_of(eqn: Equation, default: str = "") -> str:
    """Return the innermost file that made an equation."""
    return next(iter(lines_of(eqn)), (default, 0))[0]


def is_of_user(eqn: Equation) -> bool:
    """Return whether an equation was made outside of installed packages."""
    return not is_installed(file_of(eqn, "site-packages"))


def user_line(lines: Sequence[tuple[str, int]]) -> str:
    """Return the innermost line outside of installed packages as text, or `""`."""
    for file, line in lines:
        if file and not is_installed(file) and not file.startswith(_THIS):
            return f" (at {file}:{line})"
    return ""


_THIS = __file__.rpartition("testing")[0]
