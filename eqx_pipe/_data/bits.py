"""Numbers that are data: no gradient reaches them, and no optimiser changes them.

For JAX and Equinox every leaf of floating-point numbers is a parameter: `filter_grad`
differentiates it, and weight decay shrinks it even where its gradient is zero. The
numbers of records are therefore kept as the integers that have the same bits. These
are leaves like others (arguments of compiled programs, sharded, saved), and become
numbers again as the last step to a batch, which XLA fuses with what follows.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.tree_util as jtu
import numpy as np
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array

from .._errors import type_error, value_error
from .._types import PyTree


class Bits(eqx.Module):
    """An array of floating-point or complex numbers, as integers of the same bits.

    The two parts of a complex number lie along another axis, the last one.
    """

    bits: Array | np.ndarray
    dtype: np.dtype = eqx.field(static=True)

    def numbers(self) -> Array:
        """The array itself."""
        _check_bits(self)
        if not _is_complex(self.dtype):
            return jax.lax.bitcast_convert_type(self.bits, self.dtype)
        part = jnp.finfo(self.dtype).dtype
        parts = jax.lax.bitcast_convert_type(self.bits, part)
        return jax.lax.complex(parts[..., 0], parts[..., 1])

    def __pdoc__(self, **kwargs: Any) -> Any:
        # By Equinox, for its modules; it is shown as the array that it stands for.
        import wadler_lindig

        if not hasattr(self.bits, "shape"):  # of a gradient, there is None
            return wadler_lindig.pdoc(self.bits, **kwargs)
        shape = self.bits.shape[: -1 if _is_complex(self.dtype) else None]
        return wadler_lindig.array_summary(shape, self.dtype.name, kind=None)


def as_bits(tree: PyTree) -> PyTree:
    """A tree of arrays with those of floating-point or complex numbers as `Bits`."""

    def one(leaf: Array | np.ndarray) -> Bits | Array | np.ndarray:
        if not jnp.issubdtype(leaf.dtype, jnp.inexact):
            return leaf
        on_host = isinstance(leaf, np.ndarray)
        bits = _bits_on_host(leaf) if on_host else _bits(leaf)
        return Bits(bits, np.dtype(leaf.dtype))

    return jtu.tree_map(one, tree)


def as_numbers(tree: PyTree) -> PyTree:
    """The arrays behind `Bits`, or some entries of them, as what they were."""
    return jtu.tree_map(
        lambda leaf: leaf.numbers() if isinstance(leaf, Bits) else leaf,
        tree,
        is_leaf=lambda leaf: isinstance(leaf, Bits),
    )


def _check_bits(held: Bits) -> None:
    """Raises a `TypeError` if something mapped over the leaves, and made others."""
    found = held.bits.dtype
    if not jnp.issubdtype(found, jnp.unsignedinteger):
        raise type_error(
            "data.ArraySource",
            f"a leaf is {found}, where the bits of {held.dtype} are held as integers.",
            "Records are data, no parameters: to change them, make another source, "
            "`ArraySource(jax.tree.map(function, source.tree))`.",
        )


def _bits_on_host(x: np.ndarray) -> np.ndarray:
    """Before it is moved to the device, where a second copy may have no room."""
    if _is_complex(x.dtype):
        x = np.stack([np.real(x), np.imag(x)], axis=-1)
    return x.view(_integers(x.dtype))


@jax.custom_jvp
def _bits(x: Array) -> Array:
    if _is_complex(x.dtype):
        x = jnp.stack([x.real, x.imag], axis=-1)
    return jax.lax.bitcast_convert_type(x, _integers(x.dtype))


def _derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    # By itself JAX takes the derivative of bits for zero, without a word.
    (x,), (tangent,) = primals, tangents
    if not isinstance(tangent, SymbolicZero):
        raise value_error(
            "data.ArraySource",
            "a derivative with respect to its records is asked for, and records "
            "are data: none reaches them.",
            "Make what is to be learned a parameter of `pipe`: "
            "`Loader(ArraySource(jnp.arange(n)), eqx.nn.Embedding(weight=x))`; "
            "else give `jax.lax.stop_gradient(x)`.",
        )
    bits = _bits(x)
    return bits, np.zeros(bits.shape, jax.dtypes.float0)


# With symbolic zeros, to tell records that depend on what is differentiated.
_bits.defjvp(_derivative, symbolic_zeros=True)


def _is_complex(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.complexfloating)


def _integers(dtype: np.dtype) -> np.dtype:
    """The unsigned integers with as many bits."""
    return np.dtype(getattr(jnp, f"uint{jnp.finfo(dtype).bits}"))
