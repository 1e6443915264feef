"""What an axis is called for people: its label and its unit."""

from typing import Any

import equinox as eqx

from .._errors import describe_value, type_error
from .axis import Axis


class Named:
    """A label and a unit, equal to any other.

    So spaces that differ in them alone are equal as pytrees, and share programs and
    stores.
    """

    def __init__(self, label: str | None = None, unit: str | None = None):
        given = {"long_name": label, "units": unit}
        self.attrs: dict[str, str] = {
            name: text for name, text in given.items() if text
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named)

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Named"


class NamedAxis(Axis):
    """The abstract base of the axes that take a label and a unit."""

    named: eqx.AbstractVar[Named]

    @property
    def attrs(self) -> dict[str, str]:
        return dict(self.named.attrs)


def named_field() -> Any:
    """The field of a `Named`, which no comparison looks at."""
    return eqx.field(static=True, compare=False)


def as_named(function: str, label: str | None, unit: str | None) -> Named:
    """A label and a unit; raises unless each is a string or left out."""
    for argument, text in (("label", label), ("unit", unit)):
        if text is not None and not isinstance(text, str):
            raise type_error(
                function,
                f"`{argument}` is {describe_value(text)}.",
                "Give a text, such as `label='learning rate', unit='1/s'`, or "
                "leave it out.",
            )
    return Named(label, unit)
