"""Jaxprs: code to read, compare and run them, and the table of JAX's primitives."""

from .evaluate import Bodies, Body, evaluate, remade
from .fingerprint import (
    UNSURE,
    Fingerprint,
    array_text,
    digest,
    fingerprint_of,
    key_of,
    text_of,
)
from .jaxpr import (
    Equation,
    as_function,
    by_jaxpr,
    draws_together,
    effects,
    equations,
    has_refs,
    hoist,
    interpret,
    is_jaxpr,
    is_literal,
    live_bytes,
    on_values,
    open_jaxpr,
    rebind,
    refs_of,
    sub_jaxprs,
    trace,
    used_inputs,
    within,
    written,
)
from .literals import Literals, arguments_of, filled_in, literals_of, settled
from .split import Split, split_of
from .steps import alone, counted
from .table import (
    TABLE,
    Entry,
    Flow,
    bodies,
    depends_on,
    entry,
    is_elementwise,
    kind,
    may_loop_or_call_back,
    register,
    scan_counts,
)
