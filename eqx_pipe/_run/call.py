"""The call of the user's function on one point, and the check of its output."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.tree_util as jtu

from .._check import check_distinct, check_integers
from .._errors import (
    MissingKeyError,
    asks_for_key,
    describe_value,
    message,
    quoted,
    type_error,
)
from .._keys import parameters
from .._spaces import unregistered
from .._tree import as_arrays, path_name
from .._types import Key, PyTree

_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)

_CURE = (
    "It is compiled once for all points, so the values of axes are not known while "
    "it is traced. Use `jnp.where` or `jax.lax.cond` in place of `if`, functions of "
    "`jax.numpy` in place of those of `math` and NumPy, and `jnp.where(mask, x, 0)` in "
    "place of `x[mask]`. For a shape, the length of a loop or a choice between "
    "functions, make the axis `ep.Static([...])`: its values are plain Python values, "
    "and a program is compiled for each. For a schedule of optax with a peak of "
    "`p['lr']`, make one with a peak of 1, and multiply: "
    "`lambda count: p['lr'] * schedule(count)`."
)


def fn_name(fn: Any) -> str:
    """Return a readable name of a function, or of its class."""
    while hasattr(fn, "func"):  # a `functools.partial`
        fn = fn.func
    return str(getattr(fn, "__qualname__", None) or type(fn).__name__)


def call(function: str, fn: Callable[..., Any], point: PyTree, key: Key | None) -> Any:
    """Return `fn(point)`, or `fn(point, key=key)` if `fn` has a parameter `key`.

    `function` is the public function that was called, for messages. The leaves of the
    output are arrays.
    """
    parameter = key_parameter(fn)
    if parameter is not None and key is not None:
        return _checked(function, _noted(function, fn, point, key=key))
    if parameter is not None and parameter.default is parameter.empty:
        raise needs_key(function)
    try:
        return _checked(function, _noted(function, fn, point))
    except Exception as error:
        if asks_for_key(error):
            if parameter is None:
                parameter = _other_key_parameter(fn)
            if parameter is not None and parameter.default is None:
                raise needs_key(function, parameter.name) from error
        raise


def _noted(function: str, fn: Callable[..., Any], point: PyTree, **keyword: Any) -> Any:
    try:
        return fn(point, **keyword)
    except Exception as error:
        if isinstance(error, TypeError):
            misfit = _not_a_point(function, fn, point, keyword)
            if misfit is not None:
                raise misfit from error
        explain(function, "fn", error)
        raise


def explain(function: str, name: str, error: Exception) -> None:
    """Add to an error which function of the user raised it, and what may help."""
    error.add_note(f"Raised by the `{name}` that `eqx_pipe.{function}` was given.")
    if needs_value(error):
        error.add_note(_CURE)  # JAX's error names the axis: `p['n']`


def key_parameter(fn: Callable[..., Any]) -> inspect.Parameter | None:
    """Return the parameter `key` of a function of a point, if it has one."""
    named = parameters(fn)
    parameter = named.get("key")
    if parameter is None or parameter.kind is parameter.KEYWORD_ONLY:
        return parameter
    # The first parameter is the point, even if it is called `key`.
    return None if next(iter(named)) == "key" else parameter


_KEY_WORDS = {"key", "keys", "rng", "rngs", "prng", "seed"}


def _is_key_like(name: str) -> bool:
    """Return whether a parameter of this name probably takes a key or a seed."""
    return not _KEY_WORDS.isdisjoint(name.lower().split("_"))


def _other_key_parameter(fn: Callable[..., Any]) -> inspect.Parameter | None:
    """Return a parameter that takes a PRNG key under another name than `key`."""
    later = list(parameters(fn).values())[1:]
    return next((p for p in later if _is_key_like(p.name)), None)


def needs_key(function: str, name: str = "key", fn: str = "fn") -> MissingKeyError:
    """Return the error for a function that needs a key, but got none."""
    wrong, rename = f"`{fn}` needs a PRNG key and got `key=None`.", "."
    if name != "key":
        wrong = f"`{fn}` needs a PRNG key, but its parameter `{name}` gets none."
        rename = (
            ", as the parameter `key`. Rename the parameter, or give "
            f"`lambda p, key: fn(p, {name}={_key_text(name)})` in place of `fn`."
        )
    cure = f"Call `eqx_pipe.{function}(..., key=jax.random.key(0))`: each point gets a "
    return MissingKeyError(
        fn, message(function, wrong, f"{cure}key of its own{rename}")
    )


def _key_text(name: str) -> str:
    return "jax.random.bits(key)" if "seed" in name.lower() else "key"


def _checked(function: str, out: PyTree) -> PyTree:
    """Return the output with numbers as arrays; raise a `TypeError` otherwise."""
    leaves, structure = jtu.tree_flatten_with_path(out)
    if not leaves:
        raise type_error(
            function,
            f"`fn` returned {describe_value(out)}, which contains no array or number.",
            "Is its `return` missing? A function that only prints or writes may "
            "return 0.",
        )
    for path, leaf in leaves:
        where = f" at `.{path_name(path)}`" if path else ""
        check_integers(function, leaf, f"`fn` returned an output{where}")
    arrays = [as_arrays(leaf) for _, leaf in leaves]
    for (path, leaf), array in zip(leaves, arrays, strict=True):
        if not isinstance(array, jax.Array):
            where = f" at `.{path_name(path)}`" if path else ""
            raise type_error(
                function,
                f"`fn` returned {describe_value(leaf)}{where}.",
                unregistered(leaf)
                or "Outputs are pytrees of arrays and numbers; leave other values "
                "out, or return a number in their place.",
            )
    names = [path_name(path) or "value" for path, _ in leaves]
    check_distinct(function, "outputs", names)
    return jtu.tree_unflatten(structure, arrays)


def _not_a_point(
    function: str, fn: Callable[..., Any], point: PyTree, keyword: Mapping[str, Any]
) -> TypeError | None:
    """Return the error for a call that failed because `fn` takes other arguments.

    It is called after the failure only, since a signature may be wrong: a decorator may
    show that of the function it wraps.
    """
    try:
        inspect.signature(fn).bind(None, **keyword)
        return None
    except ValueError:  # the signature is unknown
        return None
    except TypeError:
        names = [p.name for p in parameters(fn).values() if _is_required(p)]
    in_point = point if isinstance(point, Mapping) else {}
    keys = {n for n in names[1:] if n == "key" or _is_key_like(n) and n not in in_point}
    values = [f"{name}={_key_text(name)}" for name in names if name in keys]
    if keys and len(names) == len(keys) + 1:
        values = [f"{names[0]}=p", *values]
        cure = f"and `key=jax.random.key(0)` to `eqx_pipe.{function}`: a PRNG key is "
        cure += "passed to a parameter called `key` only."
    else:
        values = ["**p", *values]
        cure = "with a dict of the arguments as the space. Constants can be in the "
        cure += "space, too, or be given by `functools.partial`."
    instead = f"`lambda p{', key' * bool(keys)}: fn({', '.join(values)})`"
    takes = quoted(names) or "keyword arguments alone"
    wrong = f"`fn` takes {takes}, but gets one point by position."
    return type_error(function, wrong, f"Give {instead}, {cure}")


def _is_required(parameter: inspect.Parameter) -> bool:
    many = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and not many


def needs_value(error: Exception) -> bool:
    """Return whether a function failed since it needs the value of a traced array.

    JAX raises built-in errors for the shapes of some functions, and Python for list
    indices.
    """
    if isinstance(error, _TRACED):
        return True
    said = str(error).partition("The error occurred while tracing")[0]
    traced = "concrete values" in said or "Tracer" in said
    return (
        isinstance(error, TypeError | IndexError)
        and traced
        and "unsupported operand" not in said
    )
