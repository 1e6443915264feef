"""Messages where a function wants the value of something that is traced.

JAX names the arguments of the function that was traced, which is our own: `arrays[0]`.
The message names what the user knows instead: axes and other leaves of the space.
"""

import re
from collections.abc import Sequence

import jax

from ..._errors import message
from ..._spaces import Geometry

ARRAYS, DIGITS, KEY = "eqx_pipe_arrays", "eqx_pipe_digits", "eqx_pipe_key"
"""What the arguments of the traced function are called, as nobody else would."""

SPACE_KEY = "Space.key"
"""The source of the key of the space, which the axes that draw depend on."""

_STATIC = (
    "or make it `ep.Static([...])`, whose values are plain Python values and compile a "
    "program each"
)
_BOOL = (
    "Write `jnp.where(condition, a, b)` or `jax.lax.cond` in the place of `if`, `and` "
    f"and `while`; {_STATIC}."
)
_INTEGER = (
    "A shape, the length of a `range` and an index into a list are fixed when the "
    "program is compiled: make it `ep.Static([...])`, whose values are plain Python "
    "values and compile a program each. (`jnp.asarray(values)[i]` and "
    "`jax.lax.dynamic_slice` take a traced index, `jax.lax.fori_loop` a traced length.)"
)
_NUMBER = (
    "Write `jnp.sin(x)` in the place of `math.sin(x)` and `np.sin(x)`, and no "
    f"`float()`, `int()`, `.item()`; {_STATIC}."
)
_ANY = (
    "Use operations of JAX on it, such as `jnp.where(condition, a, b)` for `if` and "
    f"`jnp.sin` for `math.sin`; {_STATIC}."
)
_MASK = (
    "How many entries a mask picks would differ between points: write "
    "`jnp.where(mask, x, 0)`, or `jnp.sum(x, where=mask)`."
)
_JAX_SAYS_WHERE = "The error occurred while tracing the function "


def explain(
    function: str,
    error: Exception,
    geometry: Geometry,
    sources: Sequence[str] | None = None,
) -> None:
    """Rewrites the message of `error`: which axes a value was wanted of, what to do.

    Its type stays. `sources` are the leaves that the traced arrays belong to; without
    them it is not known on which axes the value depends.
    """
    cure = _cure(error)
    if cure is None:
        return
    text = str(error)
    names = _named(text, geometry, sources) if sources is not None else []
    others = [name for name in names if name not in geometry.axes]
    wanted = _listed(names)
    if not names:
        traced = [name for name, axis in geometry.axes.items() if not axis.is_static]
        wanted = f"the axes ({_listed(traced)}) or of what is made of them"
    elif not others:
        wanted = f"the {'axis' if len(names) == 1 else 'axes'} {wanted}"
    wrong = (
        f"`fn` asks for the value of {wanted} as a plain Python value, and it has none "
        "yet: `fn` is compiled once for all points."
    )
    if others and others != [KEY]:
        cure += (
            f" {_listed(others)} stands in the space as an array: a plain Python "
            "number stays one."
        )
    lines = [line for line in text.splitlines() if line and not _is_noise(line)]
    error.args = (message(function, wrong, cure),)
    error.add_note("\n".join(["In JAX's words:", *lines]))


def _cure(error: Exception) -> str | None:
    """What to do about an error, or `None` if it is another one."""
    text = str(error)
    if text.startswith("`eqx_pipe."):  # our own words
        return None
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return _BOOL
    if isinstance(error, jax.errors.TracerArrayConversionError):
        return _NUMBER
    if isinstance(error, jax.errors.TracerIntegerConversionError):
        return _INTEGER
    if isinstance(error, jax.errors.ConcretizationTypeError):
        numbers = re.search(r"`(float|int|complex)` function|item\(\)|tolist\(\)", text)
        return _NUMBER if numbers else _INTEGER
    if isinstance(error, TypeError) and "concrete values" in text:
        return _INTEGER
    if isinstance(error, jax.errors.NonConcreteBooleanIndexError):
        return _MASK
    if isinstance(error, IndexError) and "Tracer" in text:
        return _INTEGER
    said = text.partition(_JAX_SAYS_WHERE)[0]
    if "Tracer" not in said or re.search("unsupported operand|argument", said):
        return None
    return _ANY if isinstance(error, TypeError | ValueError) else None


def _named(text: str, geometry: Geometry, sources: Sequence[str]) -> list[str]:
    """The axes and leaves that JAX says a value depends on, in the space's order."""
    where = text.partition(_JAX_SAYS_WHERE)[2]
    found = {sources[int(k)] for k in re.findall(rf"{ARRAYS}\[(\d+)\]", where)}
    for digit in re.findall(rf"{DIGITS}\[(\d+)\]", where):
        pairs = zip(geometry.names, geometry.axis_dims, strict=True)
        members = [name for name, dim in pairs if dim == int(digit)]
        # All axes of a dim depend on the same position: their arrays distinguish them.
        found |= set() if found.intersection(members) else set(members)
    order = [*geometry.names, *sources]
    known = sorted(found - {SPACE_KEY}, key=order.index)
    return [*known, *([KEY] if KEY in where else [])]


def _listed(names: Sequence[str]) -> str:
    shown = ["`key`" if name == KEY else f"`{name}`" for name in names[:4]]
    return ", ".join([*shown, *(["..."] if len(names) > 4 else [])])


def _is_noise(line: str) -> bool:
    ours = any(name in line for name in (ARRAYS, DIGITS, KEY))
    return (ours and line.startswith(_JAX_SAYS_WHERE)) or line.startswith(
        "See https://"
    )
