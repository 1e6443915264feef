"""All laws of a function of arrays and pytrees at once, in one report."""

import dataclasses
import functools as ft
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.tree_util as jtu

from ..._check import check_callable
from ..._keys import check_key
from ..._stage import Lift, Scope, as_module, call
from ..._types import Key, PyTree
from .batches import arguments_law, ensemble_law
from .compare import Bound, agree_with_reference, check_reference, tolerance_of
from .dtypes import dtype_law
from .finite import finite_law
from .grad import grad_law
from .held import held
from .key import key_law
from .law import Broken, Law, Undecided, law, must_work, skipped_of
from .params import params_law
from .programs import recompiles_law
from .pure import jit_law, pure_law, struct_law
from .report import input_text
from .rules import numerical_law, rules_law
from .sharding import sharding_law
from .trial import Trial

_FUNCTION = "testing.check_function"


@law("reference", "it gives what the reference gives.", function="check_function")
def reference_law(trial: Trial, reference: Callable[[], Any] | None = None) -> None:
    """`reference` gives what is wanted for the input of the trial."""
    if reference is None:
        raise Undecided("no `reference` is given")
    with must_work("the reference"):
        wanted = reference()
    agree_with_reference(trial.plain["output"], wanted, trial.tolerance)


def _by_reference(reference: Callable[..., PyTree], args: Collection[Any]) -> Law:
    """The law for one function of reference, on the arguments of the trial."""
    wanted = ft.partial(reference, *args)
    test = ft.partial(reference_law.test, reference=wanted)
    return dataclasses.replace(reference_law, test=test)


_IN_ORDER: tuple[Law, ...] = (reference_law, pure_law, struct_law)
_IN_ORDER += (jit_law, arguments_law, ensemble_law, key_law, finite_law, grad_law)
_IN_ORDER += (rules_law, numerical_law, params_law, dtype_law, recompiles_law)
_IN_ORDER += (sharding_law,)
FUNCTION_LAWS = {law.name: law for law in _IN_ORDER}
"""The laws of a function by name, in the order in which they are tried."""

# A law that is not asked where one of these is broken, by which it would be too.
_TOLD_BY = {"grad": {"finite"}, "numerical": {"finite", "rules"}}


def check_function(
    fn: Callable[..., PyTree],
    *args: PyTree,
    key: Key | None = None,
    reference: Callable[..., PyTree] | None = None,
    skip: Collection[str] = (),
    rtol: Bound = None,
    atol: Bound = None,
) -> dict[str, str]:
    """Checks a function of arrays and pytrees at the given arguments: all laws at once.

    Nothing has to be a stage, or made by this library. What is checked:

    | law | what it says |
    |---|---|
    | `reference` | it gives what the `reference` gives, if there is one |
    | `pure` | the same arguments give the same bits; none is changed or donated |
    | `struct` | abstract evaluation tells structure, shapes and dtypes |
    | `jit` | compiling changes nothing |
    | `vmap` | over any of the arguments it is a loop, and so are the gradients |
    | `ensemble` | the same over a stack of modules, if `fn` is one |
    | `key` | draws come from `key=`, if it is given, and no key is used twice |
    | `finite` | finite numbers give no NaN, nor do they in derivatives |
    | `grad` | gradients are finite where the output is; both modes agree |
    | `rules` | each `custom_jvp`, `custom_vjp`, `custom_vmap` in it is right |
    | `numerical` | first and second derivatives are what differences say |
    | `params` | each array of a module reaches the output |
    | `dtype` | half, single and double precision go through; no weak type |
    | `recompiles` | a second call compiles nothing; no large constant |
    | `sharding` | nor does an input spread over devices, if there are several |

    Differences are taken in double precision where the function can be traced in that,
    by two step sizes. Elements at which these disagree, as at a kink, are left out and
    counted. What is found is so; it may be meant, as a `stop_gradient` or a
    straight-through estimator are: then `skip` the law.

    **Arguments:**

    - `fn`: a function, or a module that can be called.
    - `args`: its arguments. Arrays in them may be differentiated, batched and donated;
        other things are as they are.
    - `key`: a PRNG key, given to `fn` as `key=`. (Keyword only.)
    - `reference`: a function of the same arguments that gives the same numbers: in
        NumPy, of any precision. (Keyword only.)
    - `skip`: names of laws to leave out. (Keyword only.)
    - `rtol`, `atol`: as in `check_stage`. (Keyword only.)

    **Returns:** by the name of each law that was tried what came of it: `"holds"`, with
    what was left out, or `"undecided"`, and why.

    **Raises:**

    - `AssertionError` if laws are broken: all of them, each with its difference.
    - `ValueError` for an unknown name in `skip`.
    - What the function itself raises on `args`.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp, numpy as np
        >>> found = ept.check_function(jnp.hypot, jnp.ones(2), jnp.array([2.0, 3.0]))
        >>> found["numerical"]
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
          - `rules`: a rule of one's own gives the derivatives and batches of ...
            difference: `square`: forward mode gives ... at [0], ...
        ...
    """
    __tracebackhide__ = True
    tolerance = tolerance_of(_FUNCTION, rtol, atol)
    check_callable(_FUNCTION, "fn", fn)
    check_reference(_FUNCTION, reference)
    check_key(_FUNCTION, key)
    skipped = skipped_of(_FUNCTION, skip, FUNCTION_LAWS)
    named = dict(zip(_names(fn, len(args)), args, strict=True))
    stage = _Called(as_module(fn), tuple(named))
    trial = Trial(stage, named, None, key, tolerance, held(stage))
    trial.plain  # noqa: B018  # What `fn` itself raises is raised as it is.
    found, broken = {}, {}
    for name, one in FUNCTION_LAWS.items():
        if name not in skipped and _concerns(name, trial, reference is not None):
            if name == "reference" and reference is not None:
                one = _by_reference(reference, args)
            if broken.keys() & _TOLD_BY.get(name, set()):
                continue
            outcome = _outcome(one, trial)
            (broken if isinstance(outcome, Broken) else found)[name] = outcome
    if broken:
        raise AssertionError(_report(fn, broken, found, named))
    return found


class _Called(eqx.Module):
    """A function as a stage of one input: its arguments by name."""

    fn: Any
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, x: Mapping[str, PyTree], *, key: Key | None = None) -> PyTree:
        args = tuple(x[name] for name in self.names)
        if "key" in self.names:  # an array of that name
            return (self.fn.fn if isinstance(self.fn, Lift) else self.fn)(*args)
        return call(self.fn, args, None, Scope(key))[0]


def _names(fn: Callable[..., Any], count: int) -> list[str]:
    """The names of the positional parameters that take so many arguments."""
    names: list[str] = []
    try:
        for name, parameter in inspect.signature(fn).parameters.items():
            if parameter.kind is parameter.VAR_POSITIONAL:
                names += [f"{name}{i}" for i in range(count - len(names))]
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                names.append(name)
    except (TypeError, ValueError):
        pass
    names = names[:count]
    return names + [f"argument{i}" for i in range(len(names), count)]


def _concerns(name: str, trial: Trial, has_reference: bool) -> bool:
    """Whether a law has something to say about what is given."""
    holds_arrays = bool(jtu.tree_leaves(eqx.filter(trial.stage, eqx.is_array)))
    match name:
        case "reference":
            return has_reference
        case "key":
            return trial.key is not None
        case "ensemble":
            return holds_arrays
        case "sharding":
            return jax.local_device_count() > 1
    return True


def _outcome(one: Law, trial: Trial) -> str | Broken:
    try:
        with must_work("a call"):
            note = one.tried(trial)
    except Broken as how:
        return how
    except Undecided as why:
        return f"undecided: {why}"
    return f"holds; {note}" if note else "holds"


def _report(
    fn: Callable[..., Any],
    broken: Mapping[str, Broken],
    found: Mapping[str, str],
    args: Mapping[str, PyTree],
) -> str:
    """All findings, then what holds, and the arguments."""
    name = getattr(fn, "__name__", type(fn).__name__)
    laws = "1 law" if len(broken) == 1 else f"{len(broken)} laws"
    tried = len(broken) + len(found)
    lines = [f"`eqx_pipe.{_FUNCTION}`: `{name}` breaks {laws} of {tried}:"]
    for law_name, how in broken.items():
        lines.append(f"  - `{law_name}`: {FUNCTION_LAWS[law_name].rule}")
        leaf = how.leaf.removeprefix("x.").removeprefix("stage.fn.")
        lines += [f"    leaf: `{leaf}`"] if leaf else []
        lines.append(f"    difference: {how.what}")
    undecided = [f"`{n}` ({v})" for n, v in found.items() if v.startswith("undecided")]
    lines += [f"  not decided: {'; '.join(undecided)}"] if undecided else []
    lines.append(f"  arguments: {input_text(args)}")
    names = ", ".join(map(repr, broken)) + ("," if len(broken) == 1 else "")
    lines.append(f"  What is meant can be left out: `skip=({names})`.")
    return "\n".join(lines)
