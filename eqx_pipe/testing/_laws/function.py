"""Check all laws of a function or stage at given arguments, in one report."""

import functools as ft
import inspect
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State

from ..._check import check_callable, check_is
from ..._errors import MissingKeyError, describe_value, type_error, value_error
from ..._keys import check_key
from ..._stage import as_module, check_state, wants_key
from ..._tree import is_key_array
from ..._types import Key, PyTree
from .batches import vmap_law
from .compare import Bound, Tolerance, agree_with_reference, check_reference
from .compiled import jit_law, params_law, recompiles_law
from .derivative import derivative_law
from .dtype import dtype_law
from .finite import finite_law
from .index import index_law
from .key import key_law
from .law import Broken, Law, check_names, must_work, outcome
from .locate import input_text, locate
from .pure import pure_law
from .trial import Call, Trial, function_text, trial_of

_FUNCTION = "testing.check_function"
_LAWS = (pure_law, jit_law, recompiles_law, params_law, key_law, dtype_law)
_LAWS += (vmap_law, finite_law, index_law, derivative_law)
NAMES = ("reference", *(law.name for law in _LAWS))
"""The names of the laws, in the order in which they are checked: cheap ones first."""


def check_function(
    fn: Callable[..., PyTree],
    *args: PyTree,
    kwargs: Mapping[str, PyTree] | None = None,
    state: State | None = None,
    key: Key | None = None,
    reference: Callable[..., PyTree] | None = None,
    only: Collection[str] | None = None,
    skip: Collection[str] = (),
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

    The function is traced once per precision; all laws, and later checks of the same
    function with arguments of the same types, share the compiled programs. `derivative`
    leaves out elements at kinks. The laws cannot know your intent: `skip` those that a
    `stop_gradient`, a straight-through estimator or similar code breaks on purpose.

    **Arguments:**

    - `fn`: a function, or a module that can be called.
    - `args`: its positional arguments. Arrays in them are differentiated and batched;
        other leaves stay fixed.
    - `kwargs`: its keyword arguments, such as all those that
        `eqx_pipe.testing.arguments(fn)` draws. (Keyword only.)
    - `state`: an `equinox.nn.State`, for a stateful stage. (Keyword only.)
    - `key`: a PRNG key, passed to `fn` as `key=`. (Keyword only.)
    - `reference`: a function of the same arguments that returns the same numbers, for
        instance in NumPy, in any precision. (Keyword only.)
    - `only`, `skip`: the names of laws to check, and to leave out. (Keyword only.)
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
        >>> found = ept.check_function(jnp.hypot, jnp.ones(2), jnp.array([2.0, 3.0]))
        >>> found["derivative"]
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
    named = dict(kwargs)
    if key is None and is_key_array(named.get("key")):
        key = named.pop("key")
    check_key(_FUNCTION, key)
    module = as_module(fn)
    check_state(_FUNCTION, module, state)
    tried = _tried(only, skip, reference is not None, key is not None)
    names = _names(fn, len(args))
    given = as_jax_sees({**dict(zip(names, args, strict=True)), **named})
    call = Call(module, given, state, key, names)
    trial = trial_of(call, Tolerance(rtol, atol))
    _first_call(trial)
    laws = [law for law in _LAWS if law.name in tried]
    if "reference" in tried:
        assert reference is not None
        laws.insert(0, _reference_law(ft.partial(reference, *args, **named)))
    found = {law.name: outcome(law, trial, "a call") for law in laws}
    broken = {n: how for n, how in found.items() if isinstance(how, Broken)}
    if broken:
        inner = {
            law.name: locate(law, trial, broken[law.name])
            for law in laws
            if law.name in broken
        }
        raise AssertionError(_report(fn, laws, found, inner, given))
    return {name: str(outcome) for name, outcome in found.items()}


def _check_bound(name: str, bound: Bound) -> None:
    """Raise unless a tolerance is `None` or a number of at least 0."""
    number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if bound is not None and not (number and 0 <= bound < math.inf):
        raise (value_error if number else type_error)(
            _FUNCTION,
            f"`{name}` is {describe_value(bound)}.",
            "Give a number of at least 0, or None for a bound that suits the dtype.",
        )


def _tried(
    only: Collection[str] | None,
    skip: Collection[str],
    has_reference: bool,
    has_key: bool,
) -> set[str]:
    """Return the names of the laws to check."""
    chosen = set(NAMES) if only is None else check_names(_FUNCTION, "only", only, NAMES)
    left = chosen - check_names(_FUNCTION, "skip", skip, NAMES)
    without = {"reference"} - ({"reference"} if has_reference else set())
    return left - without - (set() if has_key else {"key"})


def _names(fn: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return the names of the first `count` positional parameters."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        parameters = ()
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    names = [p.name for p in parameters if p.kind in kinds][:count]
    return (*names, *(f"argument{i}" for i in range(len(names), count)))


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


def _first_call(trial: Trial) -> None:
    """Call the function; its own errors are raised before any law is checked."""
    try:
        _ = trial.plain
    except Exception as error:
        if trial.call.key is None and wants_key(error, trial.call.fn):
            raise MissingKeyError("fn") from error
        error.add_note(f"In the plain call that `eqx_pipe.{_FUNCTION}` makes first.")
        raise


def _reference_law(wanted: Callable[[], PyTree]) -> Law:
    def test(trial: Trial) -> None:
        with must_work("the reference"):
            values = wanted()
        found = trial.plain["output"]
        agree_with_reference(found, values, tolerance=trial.tolerance)

    return Law("reference", "it returns what the reference returns.", test)


def _report(
    fn: Callable[..., Any],
    laws: list[Law],
    found: Mapping[str, str | Broken],
    broken: Mapping[str, tuple[str, Trial, Broken]],
    args: Mapping[str, PyTree],
) -> str:
    """Return all findings, with the stage and its input if it is inside a pipeline."""
    count = "1 law" if len(broken) == 1 else f"{len(broken)} laws"
    name = function_text(fn)
    lines = [f"`eqx_pipe.{_FUNCTION}`: `{name}` breaks {count} of {len(found)}:"]
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
        for n, v in found.items()
        if isinstance(v, str) and v.startswith("undecided")
    ]
    lines += [f"  not decided: {'; '.join(undecided)}"] if undecided else []
    lines.append(f"  arguments: {input_text(args)}")
    names = ", ".join(map(repr, broken)) + ("," if len(broken) == 1 else "")
    lines.append(f"  If this is meant: `skip=({names})`.")
    return "\n".join(lines)
