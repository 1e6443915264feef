"""Users' mistakes, one a row: a name, what is done wrong, the error, its cure's words.

A row belongs to the room that answers; the key of `ROOMS` and its name make the id of
its tests. Each mistake is found when something is built or traced, so nothing here is
compiled. Those answers that depend on much else (files, other processes, failures while
a sweep runs) are tested where that is built.
"""

from . import (
    axes,
    branch,
    compose,
    data,
    edit,
    reduce,
    search,
    sharding,
    spaces,
    sweep,
    testing,
    views,
    wrap,
)

ROOMS = {
    "chain": compose.CHAIN,
    "parallel": compose.PARALLEL,
    "weighted": compose.WEIGHTED,
    "branch": branch.BRANCH,
    "graph": compose.GRAPH,
    "inputs": compose.INPUTS,
    "tied": compose.TIED,
    "at": wrap.FOCUS,
    "batched": wrap.BATCHED,
    "repeat": wrap.REPEAT,
    "built": wrap.BUILT,
    "scan": wrap.SCAN,
    "residual": wrap.RESIDUAL,
    "outputs": wrap.OUTPUTS,
    "others": wrap.OTHERS,
    "edit": edit.EDIT,
    "choose": edit.CHOOSE,
    "precision": edit.PRECISION,
    "summary": edit.SUMMARY,
    "space": spaces.SPACE,
    "axes": axes.AXES,
    "table": spaces.TABLE,
    "unit": axes.UNIT,
    "sweep": sweep.SWEEP,
    "sweeper": sweep.SWEEPER,
    "reduce": reduce.REDUCE,
    "explore": search.EXPLORE,
    "halving": search.HALVING,
    "methods": search.METHODS,
    "rules": sharding.RULES,
    "sharding": sharding.SHARDING,
    "microbatch": sharding.MICROBATCH,
    "loader": data.LOADER,
    "sources": data.SOURCES,
    "laws": testing.LAWS,
    "strategies": testing.STRATEGIES,
    "views": views.VIEWS,
}
