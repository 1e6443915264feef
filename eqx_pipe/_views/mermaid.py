"""A diagram as Mermaid text."""

from collections.abc import Iterator

from .sketch import Arrow, Box, Frame

_BRACKETS = {"end": "([])", "stage": "[]", "decision": "{}", "join": "{{}}"}


def mermaid(whole: Frame) -> str:
    """The text of a flowchart from top to bottom."""
    return "\n".join(["flowchart TD", *_lines(whole, 1)])


def _lines(frame: Frame, depth: int) -> Iterator[str]:
    indent = "    " * depth
    for item in frame.items:
        if isinstance(item, Frame):
            yield f"{indent}subgraph {item.name}[{_quoted(item.title)}]"
            yield from _lines(item, depth + 1)
            yield f"{indent}end"
        elif isinstance(item, Arrow):
            label = f"|{_quoted(item.label)}|" if item.label else ""
            yield f"{indent}{item.source} -->{label} {item.target}"
        else:
            yield f"{indent}{_box(item)}"


def _box(box: Box) -> str:
    brackets = _BRACKETS[box.outline]
    half = len(brackets) // 2
    return f"{box.name}{brackets[:half]}{_quoted(box.text)}{brackets[half:]}"


def _quoted(text: str) -> str:
    """A label in quotes; what Mermaid or HTML would read as markup is escaped."""
    text = text.replace("#", "#35;")
    for character in '"<>`&':
        text = text.replace(character, f"#{ord(character)};")
    return '"' + text.replace("\n", "<br/>") + '"'
