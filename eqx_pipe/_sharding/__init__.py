"""Place arrays on devices: logical axes, placement, submeshes, derived shardings."""

from .on_mesh import on as on
from .parallelize import parallelize as parallelize
from .pipelined import pipelined as pipelined
from .place import AxisRules as AxisRules
from .place import constrain as constrain
from .place import constrain_to as constrain_to
from .place import fitting_sizes as fitting_sizes
from .place import init_sharded as init_sharded
from .place import mesh_like as mesh_like
from .place import num_shards as num_shards
from .place import resolve as resolve
from .place import shard as shard
from .place import with_types as with_types
