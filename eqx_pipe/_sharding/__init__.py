"""Place arrays on devices: logical axes, placement, submeshes, derived shardings."""

from .on_mesh import on
from .parallelize import parallelize
from .pipelined import pipelined
from .place import (
    AxisRules,
    constrain,
    constrain_to,
    fitting_sizes,
    init_sharded,
    mesh_like,
    num_shards,
    resolve,
    shard,
    with_types,
)
