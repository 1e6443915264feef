"""What to do where a function wants the Python value of something traced."""

import jax

_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)

_CURE = (
    "`fn` is compiled once for all points, so the values of axes are not known while "
    "it is traced. Use `jnp.where` or `jax.lax.cond` in place of `if`, functions of "
    "`jax.numpy` in place of those of `math` and NumPy, and `jnp.where(mask, x, 0)` in "
    "place of `x[mask]`. For a shape, the length of a loop or a choice between "
    "functions, make the axis `ep.Static([...])`: its values are plain Python values, "
    "and a program is compiled for each."
)


def note_concrete(error: Exception) -> None:
    """Add a note with the fix to JAX's error, which names the axis: `p['n']`."""
    if isinstance(error, _TRACED) or _is_plain(error):
        error.add_note(_CURE)


def _is_plain(error: Exception) -> bool:
    """Return whether a plain error of Python is about a traced value.

    JAX raises these for the shapes of some functions, and Python for indices of lists.
    """
    said = str(error).partition("The error occurred while tracing")[0]
    traced = "concrete values" in said or "Tracer" in said
    return (
        isinstance(error, TypeError | IndexError)
        and traced
        and "unsupported operand" not in said
    )
