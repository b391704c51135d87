"""Response distributions: each has a small file of its own and one line here."""

from nghvi._core.response import Response as Response
from nghvi.responses.beta import Beta as Beta
from nghvi.responses.beta_binomial import BetaBinomial as BetaBinomial
from nghvi.responses.binary import Logit as Logit
from nghvi.responses.binary import Probit as Probit
from nghvi.responses.binomial import Binomial as Binomial
from nghvi.responses.binomial import BinomialProbit as BinomialProbit
from nghvi.responses.gamma import GammaResponse as GammaResponse
from nghvi.responses.gaussian import Gaussian as Gaussian
from nghvi.responses.interval import Interval as Interval
from nghvi.responses.lognormal import Lognormal as Lognormal
from nghvi.responses.negative_binomial import NegativeBinomial as NegativeBinomial
from nghvi.responses.ordered import OrderedLogit as OrderedLogit
from nghvi.responses.ordered import OrderedProbit as OrderedProbit
from nghvi.responses.poisson import Poisson as Poisson
from nghvi.responses.student_t import StudentT as StudentT
from nghvi.responses.tobit import TobitResponse as TobitResponse
from nghvi.responses.weighted import WeightedGaussian as WeightedGaussian
from nghvi.responses.zero_inflated import (
    ZeroInflatedNegativeBinomial as ZeroInflatedNegativeBinomial,
)
from nghvi.responses.zero_inflated import ZeroInflatedPoisson as ZeroInflatedPoisson

RESPONSES: dict[str, type[Response]] = {
    "gaussian": Gaussian,
    "weighted-gaussian": WeightedGaussian,
    "student-t": StudentT,
    "probit": Probit,
    "logit": Logit,
    "ordered-logit": OrderedLogit,
    "ordered-probit": OrderedProbit,
    "poisson": Poisson,
    "negative-binomial": NegativeBinomial,
    "zero-inflated-poisson": ZeroInflatedPoisson,
    "zero-inflated-negative-binomial": ZeroInflatedNegativeBinomial,
    "gamma": GammaResponse,
    "lognormal": Lognormal,
    "beta": Beta,
    "binomial": Binomial,
    "binomial-probit": BinomialProbit,
    "beta-binomial": BetaBinomial,
    "tobit": TobitResponse,
    "interval": Interval,
}
"""The responses that can be chosen by name."""
