"""The public names that load when one of them is first used.

Making these modules takes about as long as importing Equinox's own, which those who
only compose stages need not wait for. `__init__.py` looks names up here.
"""

from ._data.array_source import ArraySource as ArraySource
from ._data.composed import mixture as mixture
from ._data.composed import windows as windows
from ._data.cursor import Cursor as Cursor
from ._data.loader import Loader as Loader
from ._data.statistics import reduce_loader as reduce_loader
from ._explore.explore import explore as explore
from ._explore.halving import halving as halving
from ._explore.sensitivity import sensitivity as sensitivity
from ._explore.sensitivity import sensitivity_design as sensitivity_design
from ._pipelined import pipelined as pipelined
from ._reduce.extremes import ArgMax as ArgMax
from ._reduce.extremes import ArgMin as ArgMin
from ._reduce.extremes import Max as Max
from ._reduce.extremes import Min as Min
from ._reduce.histogram import Histogram as Histogram
from ._reduce.moments import Mean as Mean
from ._reduce.moments import Sum as Sum
from ._reduce.moments import Var as Var
from ._reduce.quantile import Quantile as Quantile
from ._reduce.reducer import Reducer as Reducer
from ._reduce.topk import TopK as TopK
from ._refill.refill import refill as refill
from ._sharding.constrain import axis_rules as axis_rules
from ._sharding.constrain import constrain as constrain
from ._sharding.info import sharding_info as sharding_info
from ._sharding.init import init_sharded as init_sharded
from ._sharding.local import sharded as sharded
from ._sharding.microbatch import microbatch as microbatch
from ._sharding.parallelize import parallelize as parallelize
from ._sharding.place import pad_to as pad_to
from ._sharding.place import shard as shard
from ._sharding.rules import AxisRules as AxisRules
from ._sharding.submesh import on as on
from ._spaces.axes import Geomspace as Geomspace
from ._spaces.axes import Linspace as Linspace
from ._spaces.axes import Values as Values
from ._spaces.axis import Axis as Axis
from ._spaces.designs import latin_hypercube as latin_hypercube
from ._spaces.designs import sobol as sobol
from ._spaces.mapped import Mapped as Mapped
from ._spaces.random import Random as Random
from ._spaces.seeds import Seeds as Seeds
from ._spaces.space import Space as Space
from ._spaces.static import Static as Static
from ._spaces.tabular import table as table
from ._sweep.ahead import plan as plan
from ._sweep.cores import use_cpu_devices as use_cpu_devices
from ._sweep.results.concat import concat as concat
from ._sweep.results.load import load_result as load_result
from ._sweep.results.planned import SweepPlan as SweepPlan
from ._sweep.results.result import SweepResult as SweepResult
from ._sweep.run import sweep as sweep
from ._sweep.sweeper import sweeper as sweeper
from ._sweep.vmapped import vmap_space as vmap_space
from ._views.describe import describe as describe
from ._views.draw import draw as draw
from ._views.summary import summary as summary
