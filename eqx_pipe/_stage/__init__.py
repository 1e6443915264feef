"""Stages: the base class, and how stages are called, edited and shown."""

from .composite import Composite
from .describe import summary
from .error_path import locate
from .select import (
    NamedLeaf,
    check_matched,
    check_patterns,
    chooser,
    chosen_whole,
    each_path,
    matches,
    named_leaves,
    parts_of,
    paths_below,
    stage_at,
    stage_paths,
)
from .stage import (
    Lift,
    Passes,
    Record,
    Scope,
    Stage,
    as_module,
    as_stage,
    call,
    call_layer,
    check_state,
    copy_state,
    identity,
    is_composite,
    is_state_index,
    is_stateful,
    own_state,
    wants_key,
    why_not,
)
