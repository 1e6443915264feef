"""Where arrays live: logical axes, placement, submeshes, derived shardings."""

from .constrain import constrain as constrain
from .info import info as info
from .init import init_sharded as init_sharded
from .local import shard_map as shard_map
from .microbatch import microbatch as microbatch
from .parallelize import parallelize as parallelize
from .place import pad_to as pad_to
from .place import shard as shard
from .rules import AxisRules as AxisRules
from .submesh import on as on
