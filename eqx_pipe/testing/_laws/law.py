"""What a law is, how one is broken, and the error that says so."""

import contextlib
import dataclasses
import functools as ft
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from ..._check import check_choice
from ..._errors import describe_value, type_error


class Broken(Exception):
    """How a law is broken: in which way, in words, and at which leaf.

    `kind` distinguishes ways of breaking one law: `"value"` and `"modes"` are
    differences of numbers, which wider bounds may allow.
    """

    def __init__(self, kind: str, what: str, leaf: str = ""):
        super().__init__(what)
        self.kind, self.what, self.leaf = kind, what, leaf


class Undecided(Exception):
    """Why a law can be neither kept nor broken by what is under trial."""


@contextlib.contextmanager
def must_work(how: str) -> Iterator[None]:
    """A law is broken if what is tried inside raises; `how` says what that is."""
    try:
        yield
    except (Broken, Undecided):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        text = lines[0] if len(lines[0]) < 200 else lines[0][:200] + "..."
        what = f"{how} raises {type(error).__name__}: {text}"
        raise Broken("raises", what) from error


@dataclasses.dataclass(frozen=True)
class Law:
    """What always holds, in words, and a test that raises `Broken` where it does not.

    `test(trial)` is given something under trial. It may return what it left out, in
    words, and raises `Undecided` where it can tell nothing.
    """

    name: str
    rule: str
    test: Callable[..., str | None]
    function: str = ""

    @property
    def check(self) -> str:
        """The public function that checks it."""
        return self.function or f"check_{self.name}"

    def tried(self, trial: Any) -> str | None:
        """The test; once more with wider bounds where what is tried has few digits."""
        try:
            return self.test(trial)
        except Broken as how:
            coarser = getattr(trial, "coarser", None)
            if how.kind not in ("value", "modes") or coarser is None:
                raise
        return self.test(coarser)

    def broken_by(self, trial: Any) -> Broken | None:
        """How something under trial breaks the law; `None` if the law holds."""
        try:
            self.tried(trial)
        except Broken as how:
            return how
        except Undecided:
            pass
        return None


def law(
    name: str, rule: str, function: str = ""
) -> Callable[[Callable[..., str | None]], Law]:
    """Makes a law of its test: a decorator."""
    return ft.partial(Law, name, rule, function=function)


def laws_of(trial: type) -> list[Law]:
    """The laws that a class of trials has, in the order in which they are written."""
    return [value for value in vars(trial).values() if isinstance(value, Law)]


def check_laws(
    function: str,
    kind: str,
    trial: Any,
    where: str = "",
    laws: Sequence[Law] | None = None,
) -> None:
    """Raises an `AssertionError` at the first law that something breaks.

    `kind` says what it is, as "an axis", and `where` which one. The laws are by default
    all that the trial's class has.
    """
    __tracebackhide__ = True
    for law in laws_of(type(trial)) if laws is None else laws:
        how = None
        try:
            with must_work(kind):
                law.test(trial)
        except Broken as error:
            how = error
        except Undecided:
            pass
        if how is not None:
            text = f"the law `{law.name}` of {kind} is broken: {law.rule}"
            place = [f"where: {where}"] if where else []
            raise broken(function, text, how, place) from how.__cause__


def skipped_of(
    function: str, skip: Collection[str], known: Collection[str]
) -> set[str]:
    """The names of laws in `skip`, after a check."""
    if isinstance(skip, str) or not isinstance(skip, tuple | list | set | frozenset):
        raise type_error(
            function,
            f"`skip` is {describe_value(skip)}.",
            "Give a tuple of names of laws: `skip=('grad',)`.",
        )
    for name in skip:
        check_choice(function, "skip", name, known)
    return set(skip)


def broken(
    function: str,
    law: str,
    how: Broken,
    before: Sequence[str],
    after: Sequence[str] = (),
) -> AssertionError:
    """The error for a broken law, with lines before and after what was found.

    To be raised where nothing is being caught: to hypothesis, another context is
    another error, and it would not shrink one to the other.
    """
    leaf = [f"leaf: `{how.leaf}`"] if how.leaf else []
    lines = [*before, *leaf, f"difference: {how.what}", *after]
    head = f"`eqx_pipe.testing.{function}`: {law}"
    return AssertionError("\n  ".join([head, *lines]))
