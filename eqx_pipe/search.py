"""Search methods, which propose points; schedulers of `train`.

Methods that wrap other packages need `pip install 'eqx_pipe[search]'`.
"""

from ._search import Adaptive as Adaptive
from ._search import Design as Design
from ._search import Evosax as Evosax
from ._search import Method as Method
from ._search import Optuna as Optuna
from ._search import SearchResult as SearchResult
from ._search import explore as explore
from ._train import PBT as PBT
from ._train import Halving as Halving
from ._train import Population as Population
