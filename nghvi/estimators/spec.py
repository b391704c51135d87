"""What the model of a fit is made of, stated once: by a formula or, if there is none, by settings.

Everything after :meth:`Spec.of` reads the spec instead of formula or settings. A setting may repeat
what the formula says; one that contradicts it is refused.

Default priors are stated in units of the data, so that they mean the same whatever the units are.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nghvi._core.errors import warn
from nghvi._core.response import Response
from nghvi.data.frame import DataError, Group, columns_of
from nghvi.data.grouped import Columns
from nghvi.data.scaling import nonzero
from nghvi.data.source import Groups, by_factor
from nghvi.estimators.choices import (
    beside_inputs,
    check_counts,
    check_known_coef,
    check_method,
    check_number_of_parameters,
    choose_priors,
    choose_skip,
    choose_trunk,
    is_deep,
    scales_inputs,
)
from nghvi.estimators.columns import INTERCEPT, feature_names, random_columns, tamed, varies_within
from nghvi.estimators.grouping import Term, chosen_group, terms_of
from nghvi.estimators.response_columns import RowFacts
from nghvi.formula import Design, FormulaError, Syntax, has_intercept, parse
from nghvi.formula.syntax import EVERY_COLUMN
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.models.several_factors import SeveralFactors
from nghvi.networks import Skip, Trunk
from nghvi.posterior.mixed_posterior import Named
from nghvi.priors import HalfT, HuangWand, InverseGamma, Priors, WishartPrecision

if TYPE_CHECKING:
    from nghvi.estimators._base import MixedEstimator

MOST_SLOPES = 20
"""The most varying inputs for which a network's default effects include the inputs."""
GROUPS_OF_LEARNT = 50
"""The fewest groups of two rows or more for which what a network learns has effects by default. In
groups of one row such effects are noise that differs between rows, and hide curves."""
SAID_BY_FORMULA = ("group", "random", "fit_intercept", "covariance", "formula")
"""Settings that need not be shown if there is a formula."""


class Spec(NamedTuple):
    """Group, effects and fixed part of a model."""

    group: Group
    terms: tuple[Term, ...]
    """The effects of every factor; empty without groups."""
    deep: bool
    """Whether there is a network."""
    intercept: bool
    """Whether a column of ones is added; a network has an intercept among its features."""
    known_coef: tuple[float, ...] = ()
    """Coefficients that are not estimated, those of the last inputs."""
    facts: tuple[str, ...] = ()
    """What the last columns tell the response about the rows, such as their trials."""
    pooled: tuple[str, ...] = ()
    """Factors that are categories with many levels, which have intercepts; the last of all."""

    @staticmethod
    def of(
        settings: "MixedEstimator",
        design: Design | None,
        stated: RowFacts,
        pooled: tuple[str, ...] = (),
    ) -> "Spec":
        """Make a spec from an estimator's settings, and from its formula's design if there is one.

        ``stated`` are the facts about rows in the settings, ``pooled`` the categories whose levels
        are groups.
        """
        deep = is_deep(settings.hidden, settings.trunk)
        if design is None:
            own = columns_of(chosen_group(settings.group))
            terms = terms_of(settings, own, pooled)
            terms += tuple(Term(name, INTERCEPT, settings.covariance) for name in pooled)
            group = chosen_group((*own, *pooled)) if terms else None
            intercept = bool(settings.fit_intercept) and not deep
            return Spec(group, terms, deep, intercept, stated.known_coef, stated.names, pooled)
        syntax = parse(design.formula)
        terms = _terms_of_formula(syntax, design, settings.covariance, deep)
        intercept = has_intercept(syntax) and not deep
        spec = Spec(syntax.group, terms, deep, intercept, design.known_coef, design.facts)
        spec._check_settings(settings, syntax, design.num_effects or (len(design.random),))
        return spec

    @staticmethod
    def upgraded(fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a spec that a version saved in which one factor was no term."""
        if "random" not in fields:
            return fields
        group, terms = fields["group"], fields.get("terms", ())
        if group is not None and not terms:
            terms = (Term(str(group), fields["random"], fields["covariance"]),)
        others = {k: v for k, v in fields.items() if k not in ("random", "covariance")}
        return others | {"terms": terms}

    @property
    def several(self) -> bool:
        """Whether there are several factors."""
        return len(self.terms) > 1

    def _check_settings(
        self, settings: "MixedEstimator", syntax: Syntax, num_effects: tuple[int, ...]
    ) -> None:
        """Raise an error if settings contradict the formula."""
        group = chosen_group(settings.group)
        if group is not None and group != syntax.group:
            said = "that there are no groups" if syntax.group is None else f"group={syntax.group!r}"
            raise _contradiction(f"group={settings.group!r}", syntax, said)
        each = list(zip(syntax.factors, num_effects, strict=False))
        correlated = any(not factor.independent and number > 1 for factor, number in each)
        if settings.covariance == "diagonal" and correlated:
            remedy = "by '|' that effects are correlated (write '||' for independent ones)"
            raise _contradiction("covariance='diagonal'", syntax, remedy)
        if settings.covariance == "full" and any(factor.independent for factor, _ in each):
            remedy = "by '||' that effects are independent (write '|' for correlated ones)"
            raise _contradiction("covariance='full'", syntax, remedy)
        if not settings.fit_intercept and has_intercept(syntax):
            remedy = "that there is an intercept (write '0 +' after '~' to leave it out)"
            raise _contradiction(f"fit_intercept={settings.fit_intercept!r}", syntax, remedy)
        if not _is_auto(settings.random) and len(self.terms) != 1:
            said = "what varies by each factor" if self.terms else "that there are no effects"
            raise _contradiction(f"random={settings.random!r}", syntax, said)

    def effects(self, settings: "MixedEstimator", features: tuple[str, ...]) -> tuple[Columns, ...]:
        """Return the indices of the features with effects of every factor; none without groups."""
        deep = self.deep and not self.several
        asked, text = settings.random, settings.formula
        chosen = tuple(
            random_columns(
                term.random,
                features,
                deep=deep,
                factor=term.group if isinstance(asked, Mapping) else None,
            )
            for term in self.terms
        )
        if text is None or _is_auto(asked):
            return chosen or ((),)
        if chosen != (random_columns(asked, features, deep=deep),):
            varying = ", ".join(repr(features[j]) for j in chosen[0])
            said = f"that there are effects of {varying}"
            raise _contradiction(f"random={asked!r}", parse(text), said)
        return chosen


class Structure(NamedTuple):
    """A model without its data: what a spec makes of named input columns."""

    priors: Priors
    trunk: Trunk
    features: tuple[str, ...]
    known_coef: tuple[float, ...]
    facts: tuple[str, ...]
    effects: tuple[Columns, ...]
    """The features with effects of every factor; without groups one that has none."""
    effects_priors: tuple[InverseGamma | HalfT | WishartPrecision | HuangWand, ...]
    """The prior of every factor's effects; that in ``priors`` is the first of these."""

    @staticmethod
    def of(settings: "MixedEstimator", spec: Spec, names: tuple[str, ...]) -> "Structure":
        """Make a structure from a spec, the estimator's other settings and the inputs' names."""
        check_counts(steps=settings.steps, n_starts=settings.n_starts)
        check_counts(batch_groups=settings.batch_groups)
        check_method(settings.method)
        covariances = [term.covariance for term in spec.terms] or [settings.covariance]
        priors = [choose_priors(settings.priors, covariance) for covariance in covariances]
        features = feature_names(names, spec.intercept)
        if not features:
            raise DataError(
                "there is neither an input column nor an intercept; add one of them to fit."
            )
        trunk = choose_trunk(len(features), settings.hidden, settings.activation, settings.trunk)
        if spec.deep:
            skip = choose_skip(settings)
            trunk = Skip(trunk, len(names)) if skip else trunk
            beside = feature_names(names, True) if skip else (INTERCEPT,)
            learnt = _names_of_learnt(trunk.num_features - len(beside), beside)
            features = (*beside, *learnt)
            if skip and settings.priors is None:
                priors = [
                    beside_inputs(own, len(names), len(learnt), correlated=covariance == "full")
                    for own, covariance in zip(priors, covariances, strict=True)
                ]
        check_known_coef(spec.known_coef, settings.method, spec.deep)
        effects = spec.effects(settings, features)
        check_number_of_parameters(len(sum(effects, ())), len(names), settings.hidden)
        of_effects = tuple(own.effects for own in priors)
        known = (spec.known_coef, spec.facts)
        return Structure(priors[0], trunk, features, *known, effects, of_effects)

    def with_usual_effects(
        self, spec: Spec, x: np.ndarray, codes: np.ndarray, groups: Groups, response: Response
    ) -> "Structure":
        """Choose the features with effects if that is left to a network.

        ``groups`` are the labels of groups. Of several factors, the one with the most levels has
        the effects that it would have alone, and the others have intercepts: curves by level of
        two factors would explain the same rows.
        """
        levels = [len(labels) for labels in by_factor(groups)]
        most = int(np.argmax(levels[: len(levels) - len(spec.pooled)] or levels))
        if not (spec.deep and spec.terms and _is_auto(spec.terms[most].random)):
            return self
        own: Columns = (0,)
        if response.conjugate or not isinstance(self.trunk, Skip):
            own = self._usual(x, codes.reshape(len(codes), -1)[:, most])
        return self._replace(effects=(*self.effects[:most], own, *self.effects[most + 1 :]))

    def _usual(self, x: np.ndarray, codes: np.ndarray) -> Columns:
        """Return the features that have effects by default.

        A network with a skip connection has no effects of inputs that do not vary within groups,
        which would be effects of the group itself; nor of so many inputs that the groups'
        covariance matrices would cost more than the network; nor, if there are few groups with
        more than one row, of what it learns. Effects are integrated out and weights are not, so
        that a bound on the evidence prefers a curve per group to one for all, and says nothing
        about new groups. If effects have no closed form, only the intercept has them: integrals
        over many effects would take too long for the many steps of a network.
        """
        if not isinstance(self.trunk, Skip):
            return tuple(range(len(self.features)))
        inputs = range(1, x.shape[1] + 1)
        varying = [j for j in inputs if varies_within(x[:, j - 1], codes)]
        left = set(inputs) - set(varying if len(varying) <= MOST_SLOPES else ())
        if np.count_nonzero(np.bincount(codes) > 1) < GROUPS_OF_LEARNT:
            left |= set(range(x.shape[1] + 1, len(self.features)))
        return tuple(j for j in range(len(self.features)) if j not in left)

    def with_tails(self, settings: "MixedEstimator", x: np.ndarray) -> "Structure":
        """Let the network see asinh of inputs with heavy tails in scaled training rows ``x``."""
        if not scales_inputs(settings):
            return self
        if not isinstance(self.trunk, Skip):
            return self._replace(trunk=tamed(self.trunk, x))
        return self._replace(trunk=Skip(tamed(self.trunk.network, x), self.trunk.num_inputs))

    def model(self, response: Response, sweeps: int | None) -> MixedModel:
        """Return the model; ``sweeps`` is the number of Gibbs sweeps if these draw the effects."""
        # Published methods work with the coefficients themselves.
        linear = sweeps is None and self.trunk.linear
        settings: dict[str, Any] = {
            "known_coef": self.known_coef,
            "num_facts": len(self.facts),
            "relative_coef": linear and response.attenuation > 0,
        }
        random = sum(self.effects, ())
        if len(self.effects) == 1:
            return MixedModel(self.trunk, response, self.priors, random, sweeps, **settings)
        kind = SeveralFactors if response.conjugate else GeneralFactors
        return kind(
            *(self.trunk, response, self.priors, random),
            parts=self.effects_priors,
            effects=tuple(map(len, self.effects)),
            **settings,
        )

    def named(self, groups: Groups) -> Named:
        """Return the names of features, effects and groups; ``groups`` are the labels."""
        fixed = self.features[: len(self.features) - len(self.known_coef)]
        effects = [tuple(self.features[j] for j in own) for own in self.effects]
        if isinstance(groups, dict):
            return Named.of_factors(fixed, effects, groups)
        return Named(fixed, effects[0], groups)


def warn_about_few_groups(structure: Structure, spec: Spec, groups: Groups) -> None:
    """Warn if effects of what a network learns were asked for although there are few groups."""
    if not isinstance(structure.trunk, Skip) or not spec.terms:
        return
    each = zip(structure.effects, spec.terms, map(len, by_factor(groups)), strict=True)
    for of_factor, term, num_groups in each:
        learnt = [structure.features[j] for j in of_factor if j > structure.trunk.num_inputs]
        if learnt and num_groups < GROUPS_OF_LEARNT and not _is_auto(term.random):
            some = f"{learnt[0]} to {learnt[-1]}" if len(learnt) > 1 else learnt[0]
            warn(
                f"there are effects of what the network learns ({some}) with {num_groups} groups. "
                f"With fewer than {GROUPS_OF_LEARNT}, every group tends to get a curve of its own, "
                "and predictions for new groups suffer. Leave random at 'auto', or use "
                "random='intercept' (in a formula, '(1 | group)')."
            )


def _names_of_learnt(number: int, others: tuple[str, ...]) -> tuple[str, ...]:
    """Return names h1, h2, ... for what a network learns, or h_1, ... if a column is called so."""
    prefix = "h"
    while any(f"{prefix}{j}" in others for j in range(1, number + 1)):
        prefix += "_"
    return tuple(f"{prefix}{j}" for j in range(1, number + 1))


def _is_auto(random: Any) -> bool:
    return isinstance(random, str) and random == "auto"


def _contradiction(setting: str, syntax: Syntax, said: str) -> FormulaError:
    return FormulaError(
        f"{setting} contradicts the formula {syntax.text!r}, which says {said}; change one of "
        "them, or leave the setting out."
    )


def _terms_of_formula(
    syntax: Syntax, design: Design, covariance: str, deep: bool
) -> tuple[Term, ...]:
    """Return the effects of every factor."""
    names, found = iter(design.random), []
    for factor, number in zip(
        syntax.factors, design.num_effects or (len(design.random),), strict=False
    ):
        own: Any = list(itertools.islice(names, number))
        if deep:
            own = _random_of_network(syntax, factor.random)
        chosen = "diagonal" if factor.independent else covariance
        found.append(Term(factor.name, own, chosen))
    return tuple(found)


def _random_of_network(syntax: Syntax, random: tuple[str, ...]) -> str:
    """Return which features of a network have effects; ``random`` is what the bars follow."""
    if random not in (("1",), (EVERY_COLUMN,)):
        raise FormulaError.at(
            syntax.text,
            f"({random[-1]}",
            "with hidden layers write '(1 | group)' for an intercept per group, or '(. | group)' "
            "for effects of every feature of the network.",
        )
    return INTERCEPT if random == ("1",) else "all"


FEW_SPARE, NO_EXACT_FIT = 3, 0.3
"""With at most 3 rows more than coefficients, noise is kept away from zero by a prior with this
floor."""


def follow_data(
    structure: Structure,
    spec: Spec,
    mean: np.ndarray,
    variance: np.ndarray,
    of_y: tuple[float, float],
    num_rows: float,
) -> Structure:
    """State the priors in units of the data, from means and variances on the fitted scale.

    The unit of a coefficient is an sd of the response per sd of its column; that of the intercept
    reaches from zero to the response. All units are 1 if everything was standardised. ``of_y`` is
    mean and variance of the response or, if it is not standardised, of its predictor, so that the
    prior of the intercept reaches the level of counts. If rows hardly outnumber coefficients, the
    prior rules out noise near zero, where the density has a spike at the coefficients that leave
    no error.
    """
    y_mean, y_variance = of_y
    y_unit = nonzero(np.sqrt(y_variance + (0 if spec.intercept or spec.deep else y_mean**2)))
    coef = np.full(len(structure.features), y_unit)
    if not spec.deep:
        size = nonzero(np.sqrt(variance + mean**2))
        spread = np.sqrt(variance) if spec.intercept else size
        # A column that hardly varies has no unit of its own.
        coef = y_unit / np.where(spread > 1e-12 * size, spread, size)
    if isinstance(structure.trunk, Skip):
        coef[1 : 1 + len(variance)] = y_unit / nonzero(np.sqrt(variance))
    fixed = coef.copy()
    if spec.deep:
        fixed[0] = np.sqrt(y_unit**2 + y_mean**2)
    if spec.intercept:
        away = (mean * coef) ** 2
        fixed[0] = np.sqrt(y_unit**2 + y_mean**2 + np.sum(away[1:]))
    num_fixed = len(structure.features) - len(structure.known_coef)
    priors = structure.priors
    if not spec.deep and num_rows <= num_fixed + FEW_SPARE:
        priors = dataclasses.replace(priors, noise=HalfT(floor=NO_EXACT_FIT))
    of_factors = []
    for random, prior in zip(structure.effects, structure.effects_priors, strict=True):
        unit = coef.copy()
        if spec.intercept:
            varying = [j for j in random if j > 0]
            if 0 not in random:  # no random intercept absorbs the shift of a column
                unit[varying] = y_unit / size[varying]
            unit[0] = y_unit
            if prior.correlated:  # correlated slopes may move it as far
                unit[0] = np.sqrt(y_unit**2 + np.sum(away[varying]))
        if isinstance(prior.scale, tuple):  # of every feature, so far
            chosen = tuple(prior.scale[j] for j in random)
            prior = dataclasses.replace(prior, scale=chosen or 1.0)
        own = dataclasses.replace(priors, effects=prior)
        of_factors.append(own.in_units(fixed[:num_fixed], unit[list(random)], float(y_unit)))
    effects = tuple(own.effects for own in of_factors)
    return structure._replace(priors=of_factors[0], effects_priors=effects)
