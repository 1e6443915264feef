"""A failing example as code that runs: added to the error that it raised."""

import contextlib
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.random as jr
import numpy as np

from ..._tree import is_key_array
from .signature import name_of

# More would bury the error.
_MOST_NUMBERS = 200
_HEAD = "To run this example again:"


@contextlib.contextmanager
def add_snippet(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[None]:
    """Adds to an error from inside the code by which `fn` is called again."""
    __tracebackhide__ = True
    try:
        yield
    except Exception as error:
        # hypothesis tries an example again: the same error may come by twice.
        if not any(_HEAD in note for note in getattr(error, "__notes__", ())):
            # Objects that raise on every look at them must not hide the error.
            with contextlib.suppress(Exception):
                error.add_note(f"{_HEAD}\n\n{code_of(fn, args, kwargs)}\n")
                if half := _half_of((args, kwargs)):
                    error.add_note(half)
        raise


def _half_of(values: Any) -> str:
    """What to do if half precision is all that is wrong: it comes after single."""
    found = {str(getattr(leaf, "dtype", "")) for leaf in jax.tree.leaves(values)}
    halves = ", ".join(sorted(found & {"float16", "bfloat16"}))
    if not halves:
        return ""
    return (
        f"The annotations allow {halves}. If the function is not meant for that, "
        'say so in them, or by `dtypes=("float32",)`.'
    )


def code_of(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> str:
    """Code that calls a function; what cannot be written stands there as `...`."""
    code = _Code()
    called = code.of(fn)
    if called == "...":
        called = name_of(fn)
        code.missing.append(f"`{called}`")
    given = [code.of(value) for value in args]
    given += [f"{name}={code.of(value)}" for name, value in kwargs.items()]
    lines = [*sorted(code.imports), f"{called}({', '.join(given)})"]
    if code.missing:
        what = ", ".join(dict.fromkeys(code.missing))
        lines.insert(0, f"# Cannot be written here: {what}")
    return "\n".join(f"    {line}" for line in lines)


class _Code:
    """Values as code, and the imports that this needs."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.missing: list[str] = []

    def of(self, value: Any) -> str:
        """An expression that gives a value like this one."""
        if is_key_array(value):
            return self._key(value)
        if isinstance(value, jax.Array | np.ndarray | np.generic):
            return self._array(value)
        if isinstance(value, jax.ShapeDtypeStruct):
            self.imports.add("import jax")
            return f"jax.ShapeDtypeStruct({value.shape}, '{value.dtype}')"
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        if isinstance(value, bool | int | float | complex | str | bytes | None):
            return repr(value)
        if isinstance(value, tuple | list | dict) and type(value) in _BRACKETS:
            return self._container(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            parts = [f"{n}={self.of(v)}" for n, v in value._asdict().items()]  # type: ignore
            return f"{self._name(type(value))}({', '.join(parts)})"
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._instance(value)
        return self._name(value)

    def _container(self, value: Any) -> str:
        opening, closing = _BRACKETS[type(value)]
        if isinstance(value, dict):
            parts = [f"{self.of(k)}: {self.of(v)}" for k, v in value.items()]
        else:
            parts = [self.of(part) for part in value]
        alone = "," if isinstance(value, tuple) and len(parts) == 1 else ""
        return opening + ", ".join(parts) + alone + closing

    def _array(self, value: Any) -> str:
        array = np.asarray(value)
        module = "jnp" if isinstance(value, jax.Array) else "np"
        names = {"jnp": "import jax.numpy as jnp", "np": "import numpy as np"}
        self.imports.add(names[module])
        dtype = f"'{array.dtype}'"
        if module == "np" and array.dtype.kind == "V":
            self.imports.add("import jax.numpy as jnp")
            dtype = f"jnp.{array.dtype}"
        flat = array.ravel()
        if not array.size or (flat == flat[0]).all() and array.ndim:
            fill = flat[0].item() if array.size else 0
            return f"{module}.full({array.shape}, {self.of(fill)}, {dtype})"
        if array.size > _MOST_NUMBERS:
            self.missing.append(f"an array of shape {array.shape}")
            return "..."
        numbers = self.of(array.tolist())
        return f"{module}.array({numbers}, {dtype})"

    def _key(self, value: Any) -> str:
        self.imports.add("import jax")
        data = np.asarray(jr.key_data(value))
        seed = int(data[-1]) if data.ndim == 1 else 0
        raw = not jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        for make in ("PRNGKey",) if raw else ("key",):
            again = getattr(jr, make)(seed)
            if again.shape == value.shape and (jr.key_data(again) == data).all():
                return f"jax.random.{make}({seed})"
        self.imports.add("import jax.numpy as jnp")
        text = f"jnp.array({data.tolist()}, 'uint32')"
        return text if raw else f"jax.random.wrap_key_data({text})"

    def _instance(self, value: Any) -> str:
        """A dataclass whose constructor takes its fields."""
        cls = type(value)
        if not cls.__dataclass_params__.init:  # it has one of its own
            return self._missing(value)
        fields = [f for f in dataclasses.fields(value) if f.init]
        parts = [f"{f.name}={self.of(getattr(value, f.name))}" for f in fields]
        return f"{self._name(cls)}({', '.join(parts)})"

    def _name(self, value: Any) -> str:
        """What can be imported by its name."""
        module = getattr(value, "__module__", None)
        path = getattr(value, "__qualname__", "")
        found = sys.modules.get(module or "")
        for part in path.split("."):
            found = getattr(found, part, None)
        if not path or found is not value:
            return self._missing(value)
        if module != "builtins":
            self.imports.add(f"from {module} import {path.partition('.')[0]}")
        return path

    def _missing(self, value: Any) -> str:
        self.missing.append(f"`{name_of(value)}`")
        return "..."


_BRACKETS = {tuple: "()", list: "[]", dict: "{}"}
