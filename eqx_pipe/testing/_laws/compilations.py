"""Count the programs that are compiled."""

import collections
import contextlib
import functools as ft
from collections.abc import Iterator

import jax

from ..._check import check_int

# JAX also sends this event for a program that it finds in its cache on disk.
_EVENT = "/jax/core/compile/backend_compile_duration"
_compiled: list[str] = []


@ft.cache
def _listen() -> None:
    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _EVENT:
            _compiled.append(str(kwargs.get("fun_name", "a program")))

    jax.monitoring.register_event_duration_secs_listener(note)


@contextlib.contextmanager
def compilations() -> Iterator[list[str]]:
    """Collect the names of programs compiled inside the block; filled at its end."""
    _listen()
    names: list[str] = []
    before = len(_compiled)
    try:
        yield names
    finally:
        names += _compiled[before:]


@contextlib.contextmanager
def assert_compiles(at_most: int) -> Iterator[None]:
    """Check that at most `at_most` programs are compiled inside the block.

    Everything that XLA compiles counts: functions under `jax.jit`, and each operation
    outside `jit`. A program that JAX has in memory is not compiled again; a program
    that JAX finds in its cache on disk counts, since it would be compiled on another
    machine.

    **Arguments:**

    - `at_most`: the number of programs that may be compiled; 0 for a second call.

    **Returns:** a context manager.

    **Raises:** `AssertionError` if more programs are compiled, with their names. Errors
    raised inside the block are raised unchanged.

    !!! example

        >>> import eqx_pipe.testing as ept, jax, jax.numpy as jnp
        >>> step = jax.jit(lambda w: w - 0.1 * jnp.sin(w))
        >>> w = step(jnp.ones(3))
        >>> with ept.assert_compiles(0):
        ...     w = step(w)
        >>> with ept.assert_compiles(0):
        ...     w = jax.jit(lambda w: w - 0.1)(w)
        Traceback (most recent call last):
            ...
        AssertionError: `eqx_pipe.testing.assert_compiles`: expected at most 0 ...
    """
    __tracebackhide__ = True
    check_int("testing.assert_compiles", "at_most", at_most, 0)
    with compilations() as names:
        yield
    if len(names) > at_most:
        limit = f"{at_most} compilation{'s' * (at_most != 1)}"
        raise AssertionError(
            f"`eqx_pipe.testing.assert_compiles`: expected at most {limit}, got "
            f"{len(names)}: {names_of(names)}. A function made at each call, a "
            "shape or dtype that changes, or an operation outside of `jax.jit` is "
            "compiled again."
        )


def names_of(programs: list[str]) -> str:
    """Return the names of programs, each once, with the number of compilations."""
    counts = collections.Counter(programs)
    shown = [f"{n} x {name}" if n > 1 else name for name, n in counts.items()]
    return ", ".join(shown[:8] + ["..."] * (len(shown) > 8))
