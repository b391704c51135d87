"""Response distributions: what each one is stands in its file, and its class is named here."""

from nghvi._core.response import Response as Response
from nghvi.responses.beta import Beta as Beta
from nghvi.responses.beta import BetaBinomial as BetaBinomial
from nghvi.responses.binary import Logit as Logit
from nghvi.responses.binary import Probit as Probit
from nghvi.responses.binomial import Binomial as Binomial
from nghvi.responses.binomial import BinomialProbit as BinomialProbit
from nghvi.responses.censored import Interval as Interval
from nghvi.responses.censored import TobitResponse as TobitResponse
from nghvi.responses.gamma import GammaResponse as GammaResponse
from nghvi.responses.gaussian import Gaussian as Gaussian
from nghvi.responses.gaussian import WeightedGaussian as WeightedGaussian
from nghvi.responses.lognormal import Lognormal as Lognormal
from nghvi.responses.negative_binomial import NegativeBinomial as NegativeBinomial
from nghvi.responses.ordered import OrderedLogit as OrderedLogit
from nghvi.responses.ordered import OrderedProbit as OrderedProbit
from nghvi.responses.poisson import Poisson as Poisson
from nghvi.responses.student_t import StudentT as StudentT
from nghvi.responses.zero_inflated import (
    ZeroInflatedNegativeBinomial as ZeroInflatedNegativeBinomial,
)
from nghvi.responses.zero_inflated import ZeroInflatedPoisson as ZeroInflatedPoisson

RESPONSES: dict[str, type[Response]] = {
    response.name: response
    for response in (
        *(Gaussian, WeightedGaussian, StudentT, Probit, Logit, OrderedLogit, OrderedProbit),
        *(Poisson, NegativeBinomial, ZeroInflatedPoisson, ZeroInflatedNegativeBinomial),
        *(GammaResponse, Lognormal, Beta, Binomial, BinomialProbit, BetaBinomial),
        *(TobitResponse, Interval),
    )
}
"""The responses that can be chosen by name."""
