"""Check all laws of a function or stage at given arguments, in one report."""

import contextlib
import inspect
import math
import sys
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax.core import Tracer
from jax.errors import UnexpectedTracerError

from ..._check import check_callable, check_choice, check_is
from ..._errors import MissingKeyError, describe_value, type_error, value_error
from ..._keys import check_key, parameters
from ..._stage import (
    Composite,
    Scope,
    as_module,
    check_state,
    copy_state,
    is_stateful,
    wants_key,
)
from ..._tree import is_key_array, join_path, leaf_text, leaves_with_names
from ..._types import Key, PyTree, StageLike
from .function import LAWS, pure_law
from .law import (
    Bound,
    Broken,
    Law,
    Tolerance,
    agree_with_reference,
    check_names,
    check_reference,
    must_hold,
    must_work,
    outcome,
)
from .trial import Call, Trial, copied, function_text, trial_of

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
        returns the new state, or its arrays. (Keyword only.)
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
        _check_bound(name, bound)
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
            raise type_error(
                _FUNCTION,
                f"`{function_text(fn)}` takes {len(args)} arguments by position and no "
                "`state`, and got one.",
                "Give it a parameter `state`, or leave out `state=`.",
            )
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
        inner = {
            law.name: locate(law, trial, broken[law.name])
            for law in laws
            if law.name in broken
        }
        raise AssertionError(_report(fn, laws, verdicts, inner, inputs))
    _count_sizes(inputs)
    return {
        name: str(outcome) + _emptiness(name, inputs)
        for name, outcome in verdicts.items()
    }


_OF_NUMBERS = ("reference", "vmap", "finite", "index", "derivative")


def _emptiness(law: str, inputs: PyTree) -> str:
    """Return a note on arguments without elements, at which some laws show nothing."""
    empty = [n for n, v in leaves_with_names(inputs) if np.size(v) == 0]
    if law not in _OF_NUMBERS or not empty:
        return ""
    return f"; {', '.join(f'`{name}`' for name in empty)} has no elements"


def _count_sizes(inputs: PyTree) -> None:
    """Count the shapes for the statistics of Hypothesis, inside of its tests."""
    hypothesis = sys.modules.get("hypothesis")
    if hypothesis is not None and hypothesis.currently_in_test_context():
        shapes = [f"{n}: {leaf_text(v)}" for n, v in leaves_with_names(inputs)]
        hypothesis.event(f"check_function at {', '.join(shapes)}")


def _check_bound(name: str, bound: Bound) -> None:
    """Raise unless a tolerance is `None` or a number of at least 0."""
    number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if bound is not None and not (number and 0 <= bound < math.inf):
        raise (value_error if number else type_error)(
            _FUNCTION,
            f"`{name}` is {describe_value(bound)}.",
            "Give a number of at least 0, or None for a bound that suits the dtype.",
        )


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
    known, names = parameters(fn), _positional(fn)
    if "state" in known:
        return names.index("state") if "state" in names else count + 1
    free = [name for name in names if name not in {*named, "key"}]
    several = any(p.kind is p.VAR_POSITIONAL for p in known.values())
    return count if several or not known or len(free) > count else None


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
    """Convert NumPy arrays to the dtypes that JAX would use.

    Without `jax_enable_x64` JAX converts 64 bits to 32. A plain call would keep 64 bits
    in NumPy, and the law `jit` would report a difference.
    """

    def narrowed(leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
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
        if index is None or "state" not in result:
            agree_with_reference(result["output"], wanted, tolerance=tolerance)
            is_left = state is not None
            return "the new state was not compared" if is_left else None
        if not isinstance(wanted, tuple) or len(wanted) != 2:
            raise Broken("the reference takes a state, but does not return a new one")
        agree_with_reference(result["output"], wanted[0], tolerance=tolerance)
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
    undecided = [
        f"`{n}` ({v.removeprefix('undecided: ')})"
        for n, v in verdicts.items()
        if isinstance(v, str) and v.startswith("undecided")
    ]
    lines += [f"  not decided: {'; '.join(undecided)}"] if undecided else []
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
        seen[name] = trial_of(
            Call(stage, inputs, part, key, names), trial.asked_tolerance
        )

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


def _value_text(leaf: Any) -> str:
    if not hasattr(leaf, "dtype") or is_key_array(leaf):
        return leaf_text(leaf)
    array = np.asarray(leaf)
    if array.size > 12:
        return leaf_text(leaf)
    wide = array.astype(np.float64) if array.dtype.kind == "V" else array
    text = np.array2string(wide, separator=", ", precision=6)
    return f"{' '.join(text.split())} {leaf_text(leaf)}"
