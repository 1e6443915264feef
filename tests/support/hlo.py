"""Optimised HLO as a text without names."""

import re

_METADATA = re.compile(r",? ?(?:metadata|frontend_attributes)=\{[^{}]*\}")
_PARTITIONS = re.compile(r',?"outer_dimension_partitions":\[[^\]]*\]')
_NAME = re.compile(r"%[\w.\-]+")
_BEGIN = re.compile(r"^(ENTRY )?(%[\w.\-]+) \(.*\{$")


def normalized(text):
    """Return the text of a module in which only structure and operations are left.

    Computations follow each other in the order in which the entry computation mentions
    them, and names are numbers in the order of appearance.
    """
    bodies, entry = _computations(text)
    order, numbers, lines = [entry], {}, []
    for name in order:  # grows as computations are mentioned
        for line in bodies[name]:
            for found in _NAME.findall(line):
                if found in bodies and found not in order:
                    order.append(found)
                numbers.setdefault(found, f"%{len(numbers)}")
            lines.append(_NAME.sub(lambda m: numbers[m[0]], line))
        lines.append("")
    return "\n".join(lines)


def _computations(text):
    """Return the lines of each computation, and the name of the entry computation."""
    bodies, entry, body = {}, None, None
    for line in text.splitlines():
        begin = _BEGIN.match(line)
        if begin:
            body = bodies.setdefault(begin[2], [])
            entry = begin[2] if begin[1] else entry
        elif line == "}":
            body = None
        elif body is not None:
            body.append(_PARTITIONS.sub("", _METADATA.sub("", line)).strip())
    return bodies, entry
