"""The public names: type checkers read them here, and ``__init__.py`` loads them from here."""

from nghvi import datasets as datasets
from nghvi import families as families
from nghvi import interpret as interpret
from nghvi import methods as methods
from nghvi import plots as plots
from nghvi import priors as priors
from nghvi import responses as responses
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
from nghvi.estimators.checks import compare as compare
from nghvi.inference import Inference as Inference
from nghvi.inference import infer as infer
from nghvi.recipes.settings import Settings as Settings
from nghvi.storage import load as load

__version__: str
