"""Sharding: place pytrees by logical axis names, and spread stages over devices."""

from ._sharding import AxisRules as AxisRules
from ._sharding import constrain as constrain
from ._sharding import init_sharded as init_sharded
from ._sharding import on as on
from ._sharding import parallelize as parallelize
from ._sharding import pipelined as pipelined
from ._sharding import shard as shard
