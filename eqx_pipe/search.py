"""Methods that propose the points of a search, for `eqx_pipe.explore`.

`import eqx_pipe.search as eps`. Those of other packages need them:
`pip install 'eqx_pipe[search]'`.
"""

from ._explore.design import design as design
from ._explore.explored import Explored as Explored
from ._explore.explored import load as load
from ._explore.halving import Halved as Halved
from ._explore.halving import Training as Training
from ._explore.method import Method as Method
from ._explore.packages import evolution as evolution
from ._explore.packages import optuna as optuna
from ._explore.packages import refine as refine
