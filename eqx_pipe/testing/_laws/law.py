"""Laws, broken laws, and the error that reports them."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..._check import check_choice, check_is


class Broken(Exception):
    """A law is broken: the difference, and the leaf at which it occurs."""

    def __init__(self, what: str, leaf: str = ""):
        super().__init__(what)
        self.what, self.leaf = what, leaf


class Undecided(Exception):
    """A law cannot be decided, with the reason."""


@contextlib.contextmanager
def must_work(how: str) -> Iterator[None]:
    """Raise `Broken` if the block raises; `how` describes the block."""
    try:
        yield
    except (Broken, Undecided):
        raise
    except Exception as error:
        raise Broken(f"{how} raises {error_line(error)}") from error


def error_line(error: Exception) -> str:
    """Return the type of an error and the first line of its message."""
    line = (str(error).strip().splitlines() or [""])[0]
    short = line if len(line) < 200 else line[:200] + "..."
    return f"{type(error).__name__}: {short}"


@dataclasses.dataclass(frozen=True)
class Law:
    """A rule in words, and a test that raises `Broken` if it does not hold.

    `test(trial)` may return a note, and raises `Undecided` if it cannot decide.
    """

    name: str
    rule: str
    test: Callable[[Any], str | None]


def law(name: str, rule: str) -> Callable[[Callable[[Any], str | None]], Law]:
    """Decorate a test to make it a law."""
    return ft.partial(Law, name, rule)


def outcome(law: Law, trial: Any, kind: str) -> str | Broken:
    """Return the `Broken` of a law, or the text that it holds or is undecided.

    `kind` names the subject of the law, as in "an axis".
    """
    try:
        with must_work(kind):
            note = law.test(trial)
    except Broken as how:
        return how
    except Undecided as why:
        return f"undecided: {why}"
    return f"holds; {note}" if note else "holds"


def check_laws(
    function: str,
    kind: str,
    trial: Any,
    where: str = "",
    laws: Sequence[Law] | None = None,
) -> None:
    """Raise an `AssertionError` for the first law that is broken.

    `where` is the type of the subject. By default all laws of the trial's class are
    checked.
    """
    __tracebackhide__ = True
    own = [value for value in vars(type(trial)).values() if isinstance(value, Law)]
    for law in own if laws is None else laws:
        # Raised outside an `except` block: Hypothesis treats errors with different
        # contexts as different errors, and would not shrink one to the other.
        how = outcome(law, trial, kind)
        if isinstance(how, Broken):
            leaf = [f"leaf: `{how.leaf}`"] if how.leaf else []
            place = [f"where: {where}"] if where else []
            lines = [*place, *leaf, f"difference: {how.what}"]
            head = f"the law `{law.name}` of {kind} is broken: {law.rule}"
            text = "\n  ".join([f"`eqx_pipe.testing.{function}`: {head}", *lines])
            raise AssertionError(text) from how.__cause__


def check_names(
    function: str, option: str, names: Collection[str], known: Collection[str]
) -> set[str]:
    """Return names of laws as a set; raise if one is unknown."""
    cure = f"Give a tuple of names of laws: `{option}=('derivative',)`."
    check_is(function, option, names, tuple | list | set | frozenset, cure)
    for name in names:
        check_choice(function, option, name, known)
    return set(names)
