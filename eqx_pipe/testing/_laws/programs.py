"""One trace of a function, and the compiled programs that all laws share."""

import contextlib
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np

from ..._cache import LRUCache
from ..._jaxprs import as_function, equations
from ..._tree import as_hashable, is_key_array, leaves_with_names
from .slopes import direction

if TYPE_CHECKING:
    from .trial import Call

Leaves: TypeAlias = Sequence[Any]
Places: TypeAlias = frozenset[int]


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

    def __init__(self, call: "Call"):
        arrays, static = eqx.partition(call, eqx.is_array)
        leaves, structure = jtu.tree_flatten(arrays)
        named = leaves_with_names(arrays)
        form: list[Any] = []

        def flat(*leaves: Any) -> list[Any]:
            given = eqx.combine(jtu.tree_unflatten(structure, leaves), static)
            outputs, rest = eqx.partition(given.run(), eqx.is_array)
            form[:] = [jtu.tree_structure(outputs), rest]
            return jtu.tree_leaves(outputs)

        self.jaxpr: Any = jax.make_jaxpr(flat)(*leaves)
        self._form = form
        self.is_wide = is_wide()
        self.names = [name for name, _ in named]
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
        inner = list(equations(self.jaxpr))
        self.primitives = {eqn.primitive.name for eqn in inner}
        computed = [v.aval for eqn in inner for v in eqn.outvars]
        dtypes = {getattr(v, "dtype", int) for v in [*self.jaxpr.in_avals, *computed]}
        self.dtypes = [v for v in dtypes if jnp.issubdtype(v, jnp.inexact)]
        self._compiled: dict[Hashable, Callable[..., Any]] = {}

    def leaves(self, call: "Call") -> list[Any]:
        """Return the arrays of a call."""
        return jtu.tree_leaves(eqx.filter(call, eqx.is_array))

    def output(self, leaves: Leaves) -> Any:
        """Return the outputs in the structure that the function returns."""
        return eqx.combine(jtu.tree_unflatten(self._form[0], leaves), self._form[1])

    def cotangents(self) -> list[np.ndarray]:
        """Return fixed weights for the smooth outputs."""
        avals = [self.jaxpr.out_avals[i] for i in self.smooth]
        return [direction(k, aval) for k, aval in enumerate(avals)]

    def value(self, leaves: Leaves, which: Places = frozenset()) -> list[Any]:
        """Return the outputs; the leaves `which` may be batched."""
        return self._run(self._value, which, leaves)

    def forward(self, leaves: Leaves, tangents: Leaves) -> tuple[list, list]:
        """Return the smooth outputs and their tangents."""
        return self._run(self._forward, frozenset(), leaves, tangents)

    def backward(
        self, leaves: Leaves, cotangents: Leaves, which: Places = frozenset()
    ) -> tuple[list, list]:
        """Return the smooth outputs, and the cotangents of the moving leaves."""
        return self._run(self._backward, which, leaves, cotangents)

    def second(self, leaves: Leaves, tangents: Leaves, cotangents: Leaves) -> list:
        """Return the tangents of the cotangents of the moving leaves."""
        return self._run(self._second, frozenset(), leaves, tangents, cotangents)

    def context(self) -> contextlib.AbstractContextManager[Any]:
        """Return the precision in which the call was traced."""
        return jax.enable_x64(self.is_wide)

    def _run(self, fn: Callable[..., Any], which: Places, *args: Leaves) -> Any:
        """Run a program, batched over some leaves; it is compiled once."""
        name = (fn.__name__, which)
        if name not in self._compiled:
            axes = [0 if i in which else None for i in range(len(self.names))]
            over = jax.vmap(fn, (axes, *[None] * (len(args) - 1))) if which else fn
            self._compiled[name] = jax.jit(over)
        with self.context():
            outputs = self._compiled[name](*map(list, args))
            return jtu.tree_map(as_numpy_or_key, outputs)

    def _value(self, leaves: Leaves) -> list[Any]:
        return self.function(*leaves)

    def _of_moving(self, leaves: Leaves) -> Callable[[Leaves], list[Any]]:
        """Return the smooth outputs as a function of the moving leaves."""

        def fn(moving: Leaves) -> list[Any]:
            every = list(leaves)
            for place, v in zip(self.moving, moving, strict=True):
                every[place] = v
            outputs = self.function(*every)
            return [outputs[i] for i in self.smooth]

        return fn

    def _forward(self, leaves: Leaves, tangents: Leaves) -> Any:
        moving = [leaves[i] for i in self.moving]
        return jax.jvp(self._of_moving(leaves), (moving,), (tangents,))

    def _backward(self, leaves: Leaves, cotangents: Leaves) -> Any:
        moving = [leaves[i] for i in self.moving]
        value, pull = jax.vjp(self._of_moving(leaves), moving)
        return value, pull(cotangents)[0]

    def _second(self, leaves: Leaves, tangents: Leaves, cotangents: Leaves) -> Any:
        def gradient(moving: Leaves) -> Any:
            return jax.vjp(self._of_moving(leaves), moving)[1](cotangents)[0]

        moving = [leaves[i] for i in self.moving]
        return jax.jvp(gradient, (moving,), (tangents,))[1]


def _of_state(name: str) -> bool:
    """Return whether a leaf of a call, or of its outputs, belongs to its state."""
    return name.partition(".")[0] == "state"


def _inexact(values: Leaves) -> list[int]:
    found = [jnp.issubdtype(v.dtype, jnp.inexact) for v in values]
    return [i for i, is_inexact in enumerate(found) if is_inexact]


def is_wide() -> bool:
    """Return whether double precision is enabled in the current context."""
    return jax.dtypes.canonicalize_dtype(np.float64) == np.float64


def as_numpy_or_key(leaf: Any) -> Any:
    """Return an array as a NumPy array, but keys unchanged."""
    return leaf if is_key_array(leaf) else np.asarray(leaf)


_CACHE = LRUCache(64)


def programs_of(call: "Call") -> Programs:
    """Return the programs of a call, cached if possible.

    In a property test all examples of one structure share them.
    """
    try:
        key = _form_of(call)
        hash(key)
    except TypeError:  # an array in a static field
        return Programs(call)
    found = _CACHE.get(key)
    return _CACHE.setdefault(key, Programs(call)) if found is None else found


def _form_of(call: "Call") -> Any:
    arrays, static = eqx.partition(call, eqx.is_array)
    avals = [
        (v.shape, str(v.dtype), getattr(v, "weak_type", False))
        for v in jtu.tree_leaves(arrays)
    ]
    others = tuple(map(as_hashable, jtu.tree_leaves(static)))
    structures = jtu.tree_structure(arrays), jtu.tree_structure(static)
    # Equal static fields may make different programs: 1, 1.0 and NumPy's 1.0.
    return structures, str(structures), others, tuple(avals), is_wide()
