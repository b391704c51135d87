"""Natural gradient hybrid variational inference and deep mixed models.

Importing the package switches JAX to double precision, which the variational algebra needs, and
lets it keep compiled programs for the next process (``NGHVI_CACHE=off`` does not).
"""

import jax

from nghvi._compiled import keep_compiled

jax.config.update("jax_enable_x64", True)
keep_compiled()

from nghvi import families as families
from nghvi import interpret as interpret
from nghvi import methods as methods
from nghvi import priors as priors
from nghvi import scores as scores
from nghvi import storage as storage
from nghvi._core.errors import DataError as DataError
from nghvi._core.errors import DataWarning as DataWarning
from nghvi._core.errors import InputError as InputError
from nghvi._core.model import LatentModel as LatentModel
from nghvi._core.model import MarginalModel as MarginalModel
from nghvi._core.variational import Start as Start
from nghvi.any_model import Posterior as Posterior
from nghvi.data.source import GroupedDataset as GroupedDataset
from nghvi.estimators import MixedClassifier as MixedClassifier
from nghvi.estimators import MixedRegressor as MixedRegressor
from nghvi.estimators import mixed as mixed
from nghvi.estimators.compare import compare as compare
from nghvi.estimators.factors import Term as _Term
from nghvi.estimators.spec import Spec as _Spec
from nghvi.infer import Inference as Inference
from nghvi.infer import infer as infer
from nghvi.recipes.settings import Settings as Settings
from nghvi.storage import load as load

# Said here because the storage layer lies below them and cannot import them.
storage.register(MixedRegressor)
storage.register(MixedClassifier)
storage.register(_Spec)
storage.register(_Term)
storage.register(Posterior)

__version__ = "0.2.0.dev0"
