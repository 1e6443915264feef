"""Arguments that a function refuses in its own words: no examples of its tests."""

import dis
import inspect
import sys
import types
import typing
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import hypothesis as hp
from jax.experimental import checkify

from ..._errors import describe_value, message, type_error
from .signature import name_of, split

Refusals: typing.TypeAlias = "type[Exception] | tuple[type[Exception], ...] | None"

_WORDS = (ValueError, TypeError, LookupError, NotImplementedError)
"""What one raises of arguments. `assert` says that one is wrong oneself."""
_CHECKS = (eqx.EquinoxRuntimeError, checkify.JaxRuntimeError, AssertionError)
_CHECKERS = ("equinox", "chex", "jax", "jaxlib")
"""Packages with checks that others call, and the errors that these raise."""
_ENOUGH = 40  # refused, to say that hardly anything is taken; hypothesis says so at 50


def checked_refusals(function: str, refusals: Any) -> Refusals:
    """Itself, if these are classes of errors, or `None`."""
    kinds = refusals if isinstance(refusals, tuple) else (refusals,)
    for kind in kinds if refusals is not None else ():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            wrong = (
                f"`refusals` has {describe_value(kind)}, which is no class of errors."
            )
            cure = "Give one, or a tuple of them: `refusals=(ValueError, TypeError)`."
            raise type_error(f"testing.{function}", wrong, cure)
    return refusals


class Calls:
    """Calls a function; an example that it refuses is none of hypothesis's.

    If it refuses nine of ten, that is an error: the last refusal, with a note. With
    `refusals=None` each line that refuses is warned of once.
    """

    def __init__(self, fn: Callable[..., Any], refusals: Refusals) -> None:
        self.fn, self.refusals = fn, refusals
        self.taken = self.refused = 0
        self._told: set[tuple[str, int]] = set()
        self._hopeless = False  # for good: hypothesis tries a failing example again

    def __call__(self, arguments: Mapping[str, Any]) -> Any:
        """What the function gives."""
        __tracebackhide__ = True
        first, rest = split(self.fn, arguments)
        try:
            value = self.fn(*first, **rest)
        except Exception as error:
            if not self._refuses(error):
                raise
            self.refused += 1
            often = self.refused >= max(_ENOUGH, 9 * self.taken)
            self._hopeless = self._hopeless or often
            if self._hopeless:
                self._add_note(error)
                raise
            if self.refusals is None:
                self._tell(error)
        else:
            self.taken += 1
            return value
        hp.reject()

    def _refuses(self, error: Exception) -> bool:
        if self.refusals is not None:
            return isinstance(error, self.refusals)
        return is_own_refusal(self.fn, error)

    def _add_note(self, error: Exception) -> None:
        error.add_note(
            f"{self.refused} of {self.refused + self.taken} examples were refused by "
            f"`{name_of(self.fn)}`, the last as above, so a test of the others would "
            "say little. Annotate what it takes, or give arguments that go together by "
            "strategies: `given_typed(fn, name=strategy)`."
        )

    def _tell(self, error: Exception) -> None:
        frames = _frames(error) or [(sys._getframe(), 0, 0)]
        place = (frames[-1][0].f_code.co_filename, frames[-1][1])
        if place in self._told:
            return
        kind = type(error).__name__
        said = (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
        wrong = (
            f"`{name_of(self.fn)}` refuses arguments that its annotations allow, and "
            f"such examples are thrown away: {kind}: {said}."
        )
        cure = (
            f"If that is meant, say `refusals={kind}`; if it is a fault, `refusals=()` "
            "makes it one."
        )
        # Where warnings are errors it fails each time that hypothesis tries it again.
        text = message("testing.given_typed", wrong, cure)
        warnings.warn_explicit(text, UserWarning, *place)
        self._told.add(place)


def is_own_refusal(fn: Callable[..., Any], error: Exception) -> bool:
    """Whether an error is raised on purpose, by the package of a function itself.

    That is a `raise` of an error about arguments in one of its modules, or a check of
    Equinox, chex or JAX that these call.
    """
    package, frames = package_of(fn), _frames(error)
    if isinstance(error, _CHECKS):
        plain = isinstance(error, AssertionError)
        if plain and not (frames and _package(frames[-1][0]) == "chex"):
            return False
        names = [_package(frame) for frame, _, _ in frames]
        callers = [name for name in names if name == package or name not in _CHECKERS]
        # There are no frames of what is compiled as a whole.
        return not callers or callers[-1] == package
    if not isinstance(error, _WORDS) or not frames:
        return False
    frame, _, at = frames[-1]
    raised = dis.opname[frame.f_code.co_code[at]] == "RAISE_VARARGS"
    return raised and _package(frame) == package


def package_of(fn: Callable[..., Any]) -> str:
    """The package that a function, a method or a callable object comes from."""
    plain = inspect.unwrap(getattr(fn, "__func__", fn))
    module = getattr(plain, "__module__", None) or type(plain).__module__
    return module.partition(".")[0]


def _frames(error: Exception) -> list[tuple[types.FrameType, int, int]]:
    """Frames, lines and instructions on the way of an error, without our own."""
    found, trace = [], error.__traceback__
    while trace is not None:
        found.append((trace.tb_frame, trace.tb_lineno, trace.tb_lasti))
        trace = trace.tb_next
    return found[1:]


def _package(frame: types.FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
