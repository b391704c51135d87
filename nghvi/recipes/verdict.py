"""How a fit ended: a status, its cause, the numbers behind it, and every sentence about them.

The gradient vanishes at the optimum of the ELBO. A natural gradient step translates what is left
of it into a displacement of each mean (in posterior sds) and a relative change of each sd,
estimated from fresh draws at the final q. With averages ``e`` over n independent estimates, their
standard errors ``s`` and a quantile ``t`` of Student's distribution a fit is ::

    converged   if  max(|e| + t s) <= tolerance
    not         if  max(|e| - t s) >  tolerance
    unknown     otherwise: more draws, and "too noisy to tell" if there are no more

``t`` is chosen so that a fit with a coordinate beyond the tolerance is called converged with
probability 0.01 at most, however often it is looked at. Other code asks for the status and the
cause; the sentences are for people and are written only in this module. Those about the draws are
in :mod:`nghvi.estimators.tables`.
"""

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.special import stdtrit

TOLERANCE = 0.05
"""Largest error of a converged fit: of means in posterior sds, of sds relative to themselves."""
FALSE_ALARM, LOOKS = 0.01, 7
"""Probability of calling a fit converged that is not, and the number of looks that share it."""


class Status(enum.StrEnum):
    """How a fit ended; CONVERGED and SETTLED are the good ends."""

    CONVERGED = "converged"
    SETTLED = "settled"
    NOT_CONVERGED = "not_converged"
    NOT_SETTLED = "not_settled"
    INTERRUPTED = "interrupted"
    FAILED = "failed"

    @property
    def heading(self) -> str:
        """The status as the beginning of a sentence."""
        return self.value.replace("_", " ").capitalize()


class Cause(enum.StrEnum):
    """Why a fit ended as it did."""

    OPTIMUM = "optimum"
    ONE_OF_MANY_MODES = "one_of_many_modes"
    FEW_FACTORS = "few_factors"
    OWN_FAMILY = "own_family"
    LEAST_SQUARES = "least_squares"
    SHAPE = "shape"
    STEPS = "steps"
    STEP_LENGTH = "step_length"
    STOPPING_RULE = "stopping_rule"
    EFFECTS = "effects"
    INTEGRALS = "integrals"
    UNAFFORDABLE = "unaffordable"
    DRAWS = "draws"
    NOISE = "noise"
    RISING = "rising"
    USER = "user"
    GRADIENT = "gradient"
    DENSITY = "density"
    REJECTED_STEPS = "rejected_steps"
    CONSTANT_FEATURES = "constant_features"
    NOT_FINITE = "not_finite"
    EARLIER_VERSION = "earlier_version"


Facts = dict[str, Any]
"""Numbers by name, and the name of a stage."""


class Verdict(NamedTuple):
    """A judgement that a program can branch on and a person can read."""

    status: Status
    cause: Cause
    facts: Facts = {}
    """The numbers behind the judgement, by name."""
    resumable: bool = False
    """Whether the run can be continued from where it stopped."""

    @property
    def converged(self) -> bool:
        """Whether the result can be used."""
        return self.status in (Status.CONVERGED, Status.SETTLED)

    @property
    def mean_error(self) -> float:
        """Largest remaining displacement of a mean, in posterior sds."""
        return float(self.facts.get("mean_error", np.nan))

    @property
    def scale_error(self) -> float:
        """Largest remaining relative change of an sd."""
        return float(self.facts.get("scale_error", np.nan))

    @property
    def explanation(self) -> str:
        """What happened, as a sentence."""
        said = self._said
        return f"{said[:1].upper()}{said[1:]}."

    @property
    def _said(self) -> str:
        said = OUTCOMES[self.status, self.cause].explain(self.facts)
        return said + about_network(self.facts)

    @property
    def remedies(self) -> tuple[str, ...]:
        """What to do about it, best first; empty after a good end."""
        usual = OUTCOMES[self.status, self.cause].remedies
        return (RESUME, *usual[1:]) if self.resumable else usual

    @property
    def sentence(self) -> str:
        """Status, explanation and the first remedy."""
        return " ".join([f"{self.status.heading}: {self._said}.", *self.remedies[:1]])

    def __str__(self) -> str:
        return self.sentence


def judge(
    mean_errors: np.ndarray, scale_errors: np.ndarray, *, cause: Cause, bad_draws: int = 0
) -> Verdict:
    """Return the verdict on remaining errors of shape (independent estimates, coordinates).

    ``cause``: the cause to state if an error is left.
    """
    mean, scale = Bounds.of(mean_errors), Bounds.of(scale_errors)
    facts = {
        "mean_error": mean.estimate,
        "mean_bound": mean.upper,
        "scale_error": scale.estimate,
        "scale_bound": scale.upper,
        "bad_draws": bad_draws,
    }
    if not np.isfinite([mean.estimate, scale.estimate]).all():
        return Verdict(Status.FAILED, Cause.GRADIENT, facts)
    if max(mean.upper, scale.upper) <= TOLERANCE:
        return Verdict(Status.CONVERGED, Cause.OPTIMUM, facts)
    told = max(mean.lower, scale.lower) > TOLERANCE
    return Verdict(Status.NOT_CONVERGED, cause if told else Cause.NOISE, facts)


class Bounds(NamedTuple):
    """The largest absolute value over coordinates, with bounds on it."""

    estimate: float
    lower: float
    upper: float

    @staticmethod
    def of(estimates: np.ndarray) -> "Bounds":
        """Return the bounds given by independent estimates, one per row."""
        if len(estimates) < 2:
            return Bounds(float(np.abs(estimates).max()), 0.0, np.inf)
        with np.errstate(over="ignore"):  # a fit that went astray has an infinite error
            error = estimates.std(axis=0, ddof=1) / np.sqrt(len(estimates))
        return Bounds.around(estimates.mean(axis=0), error, len(estimates) - 1)

    @staticmethod
    def around(average: np.ndarray, error: np.ndarray, degrees: int) -> "Bounds":
        """Return the bounds given by averages, their standard errors and degrees of freedom."""
        average, margin = np.abs(average), error * stdtrit(degrees, 1 - FALSE_ALARM / LOOKS)
        return Bounds(*(float(np.max(x)) for x in (average, average - margin, average + margin)))


def about_network(facts: Facts) -> str:
    """Return what is added to an outcome if the network adds nothing to its inputs."""
    if "network_size" not in facts:
        return ""
    nothing = f". The network adds nothing here (its size is {facts['network_size']:.2f})"
    if "effects" not in facts:
        return f"{nothing}: a linear mixed model would do"
    effects = int(facts["effects"])
    slopes = (
        ("", " with intercepts by group")[effects]
        if effects < 2
        else (f" with {effects} effects by group")
    )
    return f"{nothing}: this is the linear model{slopes}"


class Outcome(NamedTuple):
    """The words for a status and a cause."""

    explain: Callable[[Facts], str]
    """What happened, from the facts, without a full stop."""
    remedies: tuple[str, ...] = ()


RESUME = "Call resume() on the fitted model: it continues where it stopped."
AUTO = 'Use method="auto", which stops once it has converged.'
MORE_STEPS = "Take more steps than now (steps=): by default a fit ends after a few further stages."
SIMPLER = "Leave out effects or inputs that the data do not determine, or use a tighter prior."
SCALES = "Look for outliers and for inputs on wildly different scales (standardize=True helps)."
COLLINEAR = "Look for columns that are nearly the same."
SMALLER = "Use a smaller network, and look for outliers and inputs that are not standardised."
ANEW = "Fit again with this version."


def _shown(value: float) -> str:
    """Return a number as text with two digits, at least 0.01."""
    if not np.isfinite(value):
        return "any number of"
    return f"{max(value, 0.01):.2g}"


def _within(facts: Facts) -> str:
    mean, scale = _shown(facts["mean_bound"]), _shown(100 * facts["scale_bound"])
    left_out = int(facts["bad_draws"])
    bad = f" ({left_out} draws with a non-finite density were left out)" if left_out else ""
    return f"means within {mean} posterior sd of the optimum, sds within {scale} %{bad}"


def _away(facts: Facts) -> str:
    mean, scale = _shown(facts["mean_error"]), _shown(100 * facts["scale_error"])
    return f"means are up to {mean} posterior sd from the optimum, sds up to {scale} %"


def _hidden(facts: Facts) -> str:
    return (
        "too noisy to tell; all that fresh draws show is "
        f"{_within(facts)}, where {TOLERANCE:g} and {100 * TOLERANCE:g} % count as converged"
    )


def _moved(facts: Facts) -> str:
    return (
        f"the ELBO moved by {facts['change']:.1f} nats in the last {int(facts['steps'])} "
        f"steps (by {facts['bound']:.1f} at most; up to {facts['limit']:.1f} count "
        "as settled)"
    )


OUTCOMES: dict[tuple[Status, Cause], Outcome] = {
    (Status.CONVERGED, Cause.OPTIMUM): Outcome(_within),
    (Status.SETTLED, Cause.ONE_OF_MANY_MODES): Outcome(
        lambda facts: (
            f"{_moved(facts)}. A network's posterior has many modes; this is "
            f"{'a mixture of the two' if facts.get('members') == 2 else 'the'} best of "
            f"{int(facts['starts'])} starts"
        )
    ),
    (Status.SETTLED, Cause.FEW_FACTORS): Outcome(
        lambda facts: (
            f"{_moved(facts)}. The Gaussian has {int(facts['rank'])} factors: sds of strongly "
            "correlated coefficients may be too small"
        )
    ),
    (Status.SETTLED, Cause.OWN_FAMILY): Outcome(
        lambda facts: (
            f"{_moved(facts)}. A family that is not Gaussian is judged by its ELBO, not by how far "
            "its means and sds are from the optimum"
        )
    ),
    (Status.SETTLED, Cause.LEAST_SQUARES): Outcome(
        lambda facts: (
            f"least squares found a minimum in {int(facts['evaluations'])} evaluations. It is a "
            "point, without uncertainty; there may be others"
        )
    ),
    (Status.NOT_CONVERGED, Cause.SHAPE): Outcome(
        lambda facts: f"{_away(facts)}: there may be several modes or a flat direction",
        (
            "Simplify the random effects, use a tighter prior, or check for collinear columns.",
            SCALES,
            SIMPLER,
        ),
    ),
    (Status.NOT_CONVERGED, Cause.STEPS): Outcome(
        _away, ('Take more steps or use method="auto".', SCALES)
    ),
    (Status.NOT_CONVERGED, Cause.STEP_LENGTH): Outcome(
        lambda facts: f"{_away(facts)}; steps of constant length never converge",
        ('Use method="davi" (legacy=False) or method="auto".',),
    ),
    (Status.NOT_CONVERGED, Cause.STOPPING_RULE): Outcome(
        lambda facts: f"{_away(facts)}; the stopping rule ended the run",
        ("Give it more patience.", AUTO),
    ),
    (Status.NOT_CONVERGED, Cause.EFFECTS): Outcome(
        lambda facts: (
            f"effects given the parameters are {facts['effects_error']:.2g} sd from their optimum"
        ),
        ('Take more steps or use method="auto".',),
    ),
    (Status.NOT_CONVERGED, Cause.INTEGRALS): Outcome(
        lambda facts: "the integrals over the effects were not exact enough",
        ("Fit again: they are refined if need be.", SIMPLER),
    ),
    (Status.NOT_CONVERGED, Cause.UNAFFORDABLE): Outcome(
        lambda facts: (
            "the integrals over the effects are not exact enough, even with the largest affordable "
            "number of points"
        ),
        ("Effects this large, or so many of them, are better drawn: latents='sample'.", SIMPLER),
    ),
    (Status.NOT_CONVERGED, Cause.DRAWS): Outcome(
        lambda facts: (
            "the integrals over the effects of the crossed factors are not exact enough, even with "
            "the largest affordable number of draws: levels have few rows each, or are very many"
        ),
        (
            "Leave out the effects of one of the crossed factors, or make its levels coarser.",
            SIMPLER,
        ),
    ),
    (Status.NOT_CONVERGED, Cause.NOISE): Outcome(
        _hidden,
        (
            "Use a tighter prior, or leave out what the data hardly determine, such as effects of "
            "very few groups. Leave latents, method and rank at their defaults if they were set.",
            COLLINEAR,
        ),
    ),
    (Status.NOT_SETTLED, Cause.RISING): Outcome(_moved, (MORE_STEPS, SMALLER)),
    (Status.NOT_SETTLED, Cause.NOISE): Outcome(
        lambda facts: f"too noisy to tell; {_moved(facts)}",
        (
            "Take more steps (steps=) or more groups per step (batch_groups=).",
            SMALLER,
        ),
    ),
    (Status.NOT_SETTLED, Cause.STEPS): Outcome(
        lambda facts: (
            f"{int(facts['steps'])} steps of the last stage are too few to tell whether the ELBO "
            f"still rises; give at least steps={int(facts['enough'])}"
        ),
        (MORE_STEPS,),
    ),
    (Status.NOT_SETTLED, Cause.LEAST_SQUARES): Outcome(
        lambda facts: (
            f"least squares found no minimum within {int(facts['evaluations'])} evaluations"
        ),
        ("Allow more evaluations (steps=), or leave steps out.", SMALLER),
    ),
    (Status.INTERRUPTED, Cause.USER): Outcome(
        lambda facts: (
            f"stage '{facts['stage']}' stopped at step {int(facts['step'])} of at most "
            f"{int(facts['steps'])}; the result so far is kept"
        ),
        ("Fit again and let it finish: this method cannot continue from where it stopped.",),
    ),
    (Status.FAILED, Cause.GRADIENT): Outcome(
        lambda facts: "the gradient is not finite at the result", (SCALES, SIMPLER, AUTO)
    ),
    (Status.FAILED, Cause.DENSITY): Outcome(
        lambda facts: (
            f"the log density is not finite at {int(facts['lost'])} of {int(facts['draws'])} draws "
            "of the result"
        ),
        ("Standardise the inputs, use a tighter prior, or a simpler model.", SCALES),
    ),
    (Status.FAILED, Cause.REJECTED_STEPS): Outcome(
        lambda facts: (
            f"{int(facts['rejected'])} steps led to numbers that are not finite and were not "
            "taken; the result is the last good state"
        ),
        ("Standardise the inputs, look for outliers, or use fewer layers.", SIMPLER),
    ),
    (Status.FAILED, Cause.CONSTANT_FEATURES): Outcome(
        lambda facts: (
            "all features of the network are constant (it is dead), so only the intercept was "
            "fitted"
        ),
        ("Try another random_state, more n_starts or activation='silu'.",),
    ),
    (Status.FAILED, Cause.NOT_FINITE): Outcome(
        lambda facts: "parameters in the summary are not finite numbers",
        ("Standardise the data (standardize=True), or measure them in other units.", SIMPLER),
    ),
    **{
        (status, Cause.EARLIER_VERSION): Outcome(
            lambda facts: "judged by an earlier version of nghvi, by its own rules", (ANEW,)
        )
        for status in Status
    },
}
"""The words for every way in which a fit can end."""
