"""Response distributions: each kind has a file, and every class is named here."""

from nghvi._core.response import Response as Response
from nghvi.responses.binary import Logit as Logit
from nghvi.responses.binary import Probit as Probit
from nghvi.responses.censored import Interval as Interval
from nghvi.responses.censored import TobitResponse as TobitResponse
from nghvi.responses.counts import NegativeBinomial as NegativeBinomial
from nghvi.responses.counts import Poisson as Poisson
from nghvi.responses.counts import ZeroInflatedNegativeBinomial as ZeroInflatedNegativeBinomial
from nghvi.responses.counts import ZeroInflatedPoisson as ZeroInflatedPoisson
from nghvi.responses.gaussian import Gaussian as Gaussian
from nghvi.responses.gaussian import WeightedGaussian as WeightedGaussian
from nghvi.responses.ordered import OrderedLogit as OrderedLogit
from nghvi.responses.ordered import OrderedProbit as OrderedProbit
from nghvi.responses.positive import GammaResponse as GammaResponse
from nghvi.responses.positive import Lognormal as Lognormal
from nghvi.responses.proportions import Beta as Beta
from nghvi.responses.proportions import BetaBinomial as BetaBinomial
from nghvi.responses.proportions import Binomial as Binomial
from nghvi.responses.proportions import BinomialProbit as BinomialProbit
from nghvi.responses.student_t import StudentT as StudentT

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
