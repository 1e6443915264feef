"""The library's exceptions, and helpers that build messages.

A message has three parts: what is wrong and where, the value, and the fix.
"""

import difflib
import importlib
import logging
import threading
from collections.abc import Iterable
from typing import Any

_log = logging.getLogger("eqx_pipe")
_logging = threading.Lock()
_logged: set[str] = set()


class MissingKeyError(ValueError):
    """A stage, or a function of a sweep, requires a PRNG key and got `key=None`.

    `path` is the path of the stage, relative to the pipeline that was called, or else
    the name of an axis, `"fn"` of a sweep, or `"method"` of a search.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> from equinox.nn import Dropout
        >>> try:
        ...     ep.chain(jnp.sin, Dropout(0.5))(jnp.ones(3))
        ... except ep.MissingKeyError as error:
        ...     error.path
        '1'
    """

    path: str

    def __init__(self, path: str, text: str = ""):
        super().__init__(path, text)
        self.path, self._text = path, text

    def __str__(self) -> str:
        return self._text or (
            f"stage `{self.path}` needs a PRNG key and got `key=None`. Call the "
            "pipeline with `key=jax.random.key(0)`, or make the stage deterministic "
            "(`equinox.nn.inference_mode`)."
        )


def asks_for_key(error: BaseException) -> bool:
    """Return whether `error` was raised because a function got `None` as its PRNG key.

    Either `jax.random` or an Equinox layer (a `RuntimeError`) raised it. The message
    may be about another key or another `None`, so the `key` of the function that raised
    it is checked.
    """
    trace, module, key = error.__traceback__, "", None
    # The module is private, but nothing public identifies the function. Filtered
    # tracebacks keep its frame.
    while trace is not None and not module.startswith("jax._src.random"):
        module = trace.tb_frame.f_globals.get("__name__", "")
        key = trace.tb_frame.f_locals.get("key", error)
        trace = trace.tb_next
    if module.startswith("jax._src.random"):
        return key is None and "NoneType" in str(error)
    of_equinox = isinstance(error, RuntimeError) and module.startswith("equinox.")
    return of_equinox and key is None


class StructureError(ValueError):
    """Two pytrees that must agree differ in structure, shape or dtype.

    !!! example

        >>> import eqx_pipe as ep, jax.numpy as jnp
        >>> try:
        ...     ep.parallel(jnp.sum, jnp.sin, merge="stack")(jnp.ones(3))
        ... except ep.StructureError as error:
        ...     print(type(error).__name__, "of", type(error).__base__.__name__)
        StructureError of ValueError
    """


class SweepError(RuntimeError):
    """A sweep could not finish.

    `indices` are the flat indices in the space of the points that failed.

    !!! example

        >>> import equinox as eqx, eqx_pipe as ep, jax.numpy as jnp
        >>> def root(x):
        ...     return eqx.error_if(jnp.sqrt(x), x < 0, "negative")
        >>> try:
        ...     ep.sweep(root, ep.Linspace(-1, 1, 3))
        ... except ep.SweepError as error:
        ...     error.indices
        (0,)
    """

    indices: tuple[int, ...]

    def __init__(self, message: str, indices: Iterable[int] = ()):
        super().__init__(message)
        self.indices = tuple(indices)


def message(function: str, wrong: str, cure: str) -> str:
    """Return an error message: the public function, what is wrong, and the fix.

    `wrong` may end with a list, from `bullets`, whose last line ends with a newline.
    """
    space = "" if wrong.endswith("\n") else " "
    return f"`eqx_pipe.{function}`: {wrong}{space}{cure}"


def value_error(function: str, wrong: str, cure: str) -> ValueError:
    """Return a `ValueError` with this `message`."""
    return ValueError(message(function, wrong, cure))


def type_error(function: str, wrong: str, cure: str) -> TypeError:
    """Return a `TypeError` with this `message`."""
    return TypeError(message(function, wrong, cure))


def sweep_error(function: str, wrong: str, cure: str) -> SweepError:
    """Return a `SweepError` with this `message`."""
    return SweepError(message(function, wrong, cure))


def structure_error(function: str, wrong: str, cure: str) -> StructureError:
    """Return a `StructureError` with this `message`."""
    return StructureError(message(function, wrong, cure))


def optional(function: str, package: str, extra: str = "sweep") -> Any:
    """Import an optional package; raise with the install command if it is missing."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ImportError(
            f"`eqx_pipe.{function}` needs {package.partition('.')[0]}. Install it by "
            f"`pip install 'eqx_pipe[{extra}]'`."
        ) from error


def nearest(name: object, names: Iterable[object], limit: int = 12) -> str:
    """Return a sentence with some of the valid names, the most similar first."""
    names = [str(each) for each in names]
    close = difflib.get_close_matches(str(name), names, n=limit)
    shown = list(dict.fromkeys([*close, *names]))[:limit]
    more = f", and {len(names) - limit} more" if len(names) > limit else ""
    hint = f"Did you mean `{close[0]}`? " if close else ""
    return f"{hint}Known names: {quoted(shown) or 'none'}{more}."


_OTHER_NAMES = {
    "logspace": "`Geomspace(start, stop, num)` takes the ends themselves; a search "
    "takes `LogUniform(start, stop)`.",
    "choice categorical select": "`Values([8, 64])` lists numbers, and "
    '`Static(["relu", "tanh"])` other Python values.',
    "grid gridsearch product": "A dict of axes is a grid: "
    '`sweep(fn, {"a": Linspace(0, 1, 5), "b": Values([1, 2])})`.',
    "zip": '`Space({"a": ..., "b": ...}, "zip")` varies its axes together.',
    "int integers intuniform randint range arange": "`Values(range(8))` lists numbers; "
    "a search takes `Mapped(jnp.round, Uniform(1, 32))`.",
    "normal gaussian": "`Random(jax.random.normal, num)` draws values.",
    "seed replicates repeats": "`Seeds(8)` is an axis of replicates.",
    "sequential pipeline pipe compose": "`chain` runs stages one after the other.",
}
"""The equivalents here of lower-case names from other packages."""


def hint(name: str, public: Iterable[str], modules: Iterable[Any]) -> str:
    """Return a sentence about a name that the package does not have."""
    for module in modules:
        if name in dir(module):
            return f"Did you mean `{module.__name__}.{name}`?"
    plain = name.replace("_", "").lower()
    texts = (text for names, text in _OTHER_NAMES.items() if plain in names.split())
    return next(texts, None) or nearest(name, public)


def quoted(names: Iterable[object]) -> str:
    """Join names for a sentence, each in backticks."""
    return ", ".join(f"`{name}`" for name in names)


def bullets(lines: Iterable[object]) -> str:
    """Return a list for the end of a message part, one line per entry."""
    return "".join(f"\n- {line}" for line in lines) + "\n"


def describe_value(value: Any, limit: int = 80) -> str:
    """Return `value (type)`, cut to a readable length."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {value.dtype}[{','.join(map(str, value.shape))}]"
    name = function_name(value)
    if name:
        return name
    # The `repr` of a long list is slow, and only its beginning would be shown.
    many = isinstance(value, list | tuple) and len(value) > limit
    text = " ".join(repr(value[:limit] if many else value).split("\n"))
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    return f"{text} ({type(value).__name__})"


def function_name(value: object) -> str:
    """Return "the function `name`", without the address of `repr`; `""` for others."""
    name = getattr(value, "__name__", None)
    is_function = callable(value) and not isinstance(value, type)
    return f"the function `{name}`" if is_function and isinstance(name, str) else ""


def log_once(subject: str, text: str, *args: Any) -> None:
    """Log a warning, unless one about `subject` was logged before in this process.

    Not a Python warning, which some test suites turn into errors. Python prints the
    warnings of loggers by default.
    """
    with _logging:
        if subject in _logged:
            return
        _logged.add(subject)
    _log.warning(text + " (This warning appears once.)", *args)
