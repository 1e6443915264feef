"""Place arrays on devices: logical axes, placement, submeshes, derived shardings."""

from .constrain import constrain as constrain
from .info import info as info
from .mesh import constrain_to as constrain_to
from .mesh import fitting_sizes as fitting_sizes
from .mesh import mesh_like as mesh_like
from .mesh import num_shards as num_shards
from .mesh import with_types as with_types
from .microbatch import microbatch as microbatch
from .parallelize import parallelize as parallelize
from .pipelined import pipelined as pipelined
from .place import init_sharded as init_sharded
from .place import pad_to as pad_to
from .place import shard as shard
from .rules import AxisRules as AxisRules
from .shard_map import shard_map as shard_map
from .specs import resolve as resolve
from .submesh import on as on
