"""Optimised HLO as a text without names, and what XLA counts of a program."""

import hashlib

from tests.support.hlo import normalized as normalized


def digest(text):
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def costs(compiled):
    """Return what XLA counts of a compiled program, in operations and bytes."""
    counted, memory = compiled.cost_analysis(), compiled.memory_analysis()
    found = {
        "flops": counted.get("flops", 0),
        "transcendentals": counted.get("transcendentals", 0),
        "bytes": counted.get("bytes accessed", 0),
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
    }
    peak = getattr(memory, "peak_memory_in_bytes", 0)
    return {name: round(n) for name, n in (found | {"peak": peak}).items() if n}
