"""A call of a function, and cached results that the laws need."""

import contextlib
import dataclasses
import functools as ft
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from equinox.nn import State
from jax import numpy_dtype_promotion
from jax.core import Tracer
from jax.typing import DTypeLike

from ..._captured import Fixed
from ..._stage import Lift, Scope, call, copy_state
from ..._tree import is_key_array
from ..._types import Key, PyTree
from .compare import Tolerance
from .compiles import compilations
from .law import Undecided
from .programs import Programs, is_wide, programs_of
from .pure import held


class Call(eqx.Module):
    """A function with its arguments by name; the first arguments are positional."""

    fn: Any
    args: dict[str, PyTree]
    state: State | None = None
    key: Key | None = None
    positional: tuple[str, ...] = eqx.field(static=True, default=())

    def run(self) -> dict[str, PyTree]:
        """Return the output, and the new state if there is a state."""
        args = tuple(self.args[name] for name in self.positional)
        named = {n: v for n, v in self.args.items() if n not in self.positional}
        fn = self.fn.fn if isinstance(self.fn, Lift) else self.fn
        if "key" in self.args:  # an array argument of that name
            return {"output": fn(*args, **named)}
        if not self.args and self.state is None and self.key is not None:
            return {"output": fn(key=self.key)}
        # Equinox marks a state as used when it is updated.
        state = copy_state(self.state)
        y, new = call(self.fn, args, state, Scope(self.key), named)
        return {"output": y} if self.state is None else {"output": y, "state": new}


@dataclasses.dataclass(frozen=True)
class Trial:
    """A call under test.

    Results that several laws need are cached, since a plain call compiles its loops
    each time, and compiling takes longer than running.
    """

    call: Call
    own_tolerance: Tolerance = Tolerance()
    before: dict[str, Any] = dataclasses.field(default_factory=dict)

    @ft.cached_property
    def given(self) -> PyTree:
        """Copies of the arguments, for the plain calls, which may write to them."""
        return jtu.tree_map(copied, self.call.args)

    @ft.cached_property
    def plain(self) -> dict[str, PyTree]:
        """The result of the first plain call."""
        return snapshot(dataclasses.replace(self.call, args=self.given).run())

    @ft.cached_property
    def again(self) -> tuple[dict[str, PyTree], list[str]]:
        """The result of a second plain call, and the programs that it compiled."""
        _ = self.plain
        args = jtu.tree_map(copied, self.call.args)
        with compilations() as found:
            result = dataclasses.replace(self.call, args=args).run()
        return snapshot(result), found

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

        Arrays that a function closes over are promoted.
        """
        x64 = jax.enable_x64(real == np.float64 or is_wide())
        with contextlib.suppress(Exception), x64, numpy_dtype_promotion("standard"):
            other = Trial(cast(self.call, real), self.own_tolerance)
            _ = other.programs
            return other
        return None

    @ft.cached_property
    def lanes(self) -> list[list[Any]]:
        """The leaves of the call, the leaves rolled by one, and rolled and halved."""
        leaves = self.programs.leaves(self.call)
        return [leaves, list(map(moved, leaves)), list(map(halved, leaves))]

    @ft.cached_property
    def tolerance(self) -> Tolerance:
        """The tolerance; that of half precision if the function computes in it.

        Half-precision rounding inside a float32 function depends on XLA's fusion.
        """
        if isinstance(self._traced, Exception) or self.own_tolerance != Tolerance():
            return self.own_tolerance
        names = {np.dtype(dtype).name for dtype in self._traced.dtypes}
        coarse = [name for name in ("bfloat16", "float16") if name in names]
        return Tolerance(coarsest=coarse[0]) if coarse else Tolerance()


def trial_of(call: Call, tolerance: Tolerance) -> Trial:
    """Return a trial that has recorded the function's values before any call."""
    return Trial(call, tolerance, held(call.fn))


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


def snapshot(tree: PyTree) -> PyTree:
    """Return a copy that later writes to arrays or containers do not change."""

    def copy(leaf: Any) -> Any:
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    return jtu.tree_map(copy, tree)


def copied(leaf: Any) -> Any:
    """Return a copy of an array, through NumPy, which compiles nothing."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
        return leaf
    # NumPy would lose the key, the weak type or the sharding.
    if is_key_array(leaf) or leaf.weak_type or len(leaf.devices()) > 1:
        return leaf
    return jax.device_put(np.array(leaf))


def moved(leaf: Any, by: int = 1) -> Any:
    """Return an array with its elements rolled; keys unchanged."""
    return leaf if is_key_array(leaf) else np.roll(np.asarray(leaf), by)


def halved(leaf: Any) -> Any:
    """Return an array rolled the other way, and halved if inexact."""
    leaf = moved(leaf, -1)
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    half = np.asarray(0.5, leaf.dtype) if inexact else None
    return leaf if half is None else np.asarray(leaf * half).astype(leaf.dtype)


def function_text(fn: Any) -> str:
    """Return the name of a function, or of a module's type."""
    fn = fn.fn if isinstance(fn, Lift) else fn
    return getattr(fn, "__name__", type(fn).__name__)
