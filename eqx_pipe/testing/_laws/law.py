"""What a law is, and how a broken one is reported."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from .compare import Finding, raised


@dataclasses.dataclass(frozen=True)
class Law:
    """What always holds, in words, and a search for what breaks it.

    `find(trial, ...)` gives what it finds in something under trial, `None` if the law
    holds. Laws of stages take a tolerance, too.
    """

    name: str
    rule: str
    find: Callable[..., Finding | None]


def check_laws(
    function: str, kind: str, laws: Sequence[Law], trial: Any, where: str = ""
) -> None:
    """Raises an `AssertionError` at the first law that something breaks.

    `kind` says what it is, as "an axis", and `where` which one.
    """
    __tracebackhide__ = True
    place = [f"where: {where}"] if where else []
    for law in laws:
        cause = None
        try:
            finding = law.find(trial)
        except Exception as error:
            finding, cause = raised(error, kind), error
        if finding is not None:
            text = f"the law `{law.name}` of {kind} is broken: {law.rule}"
            raise broken(function, text, finding, place) from cause


def broken(
    function: str,
    law: str,
    finding: Finding,
    before: Sequence[str],
    after: Sequence[str] = (),
) -> AssertionError:
    """The error for a broken law, with lines before and after what was found."""
    leaf = [f"leaf: `{finding.leaf}`"] if finding.leaf else []
    lines = [*before, *leaf, f"difference: {finding.what}", *after]
    head = f"`eqx_pipe.testing.{function}`: {law}"
    return AssertionError("\n  ".join([head, *lines]))
