"""What the model of a fit is made of, stated once: by a formula or, if there is none, by settings.

Everything after :meth:`Spec.of` reads the spec instead of formula or settings. A setting may repeat
what the formula says; one that contradicts it is refused.

Default priors are stated in units of the data, so that they mean the same whatever the units are.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple, cast

import numpy as np

from nghvi._core.errors import warn
from nghvi._core.response import Response
from nghvi.data.frame import DataError, Group
from nghvi.data.scaling import nonzero
from nghvi.data.source import Groups
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
from nghvi.estimators.grouping import Term, chosen_group, random_of, terms_of
from nghvi.estimators.response_columns import RowFacts
from nghvi.formula import Design, FormulaError, Syntax, has_intercept, parse
from nghvi.formula.syntax import EVERY_COLUMN, FactorSyntax
from nghvi.models.general_factors import GeneralFactors
from nghvi.models.mixed import MixedModel
from nghvi.models.several_factors import SeveralFactors
from nghvi.networks import Skip, Trunk
from nghvi.posterior.mixed_posterior import Named
from nghvi.priors import HalfT, HuangWand, InverseGamma, Priors, WishartPrecision

MOST_SLOPES = 20
"""The most varying inputs for which a network's default effects include the inputs."""
GROUPS_OF_LEARNT = 50
"""The fewest groups for which what a network learns has effects by default."""
SAID_BY_FORMULA = ("group", "random", "fit_intercept", "covariance", "formula")
"""Settings that need not be shown if there is a formula."""


class Spec(NamedTuple):
    """Group, effects and fixed part of a model."""

    group: Group
    random: Any
    """"auto", "intercept", "all" or names of the features with effects."""
    covariance: str
    deep: bool
    """Whether there is a network."""
    intercept: bool
    """Whether a column of ones is added; a network has an intercept among its features."""
    known_coef: tuple[float, ...] = ()
    """Coefficients that are not estimated, those of the last inputs."""
    facts: tuple[str, ...] = ()
    """What the last columns tell the response about the rows, such as their trials."""
    terms: tuple[Term, ...] = ()
    """The effects of every factor; empty unless there are several factors."""
    pooled: tuple[str, ...] = ()
    """Factors that are categories with many levels, which have intercepts; the last of all."""

    @staticmethod
    def of(
        settings: Any, design: Design | None, stated: RowFacts, pooled: tuple[str, ...] = ()
    ) -> "Spec":
        """Make a spec from an estimator's settings, and from its formula's design if there is one.

        ``stated`` are the facts about rows in the settings, ``pooled`` the categories whose levels
        are groups.
        """
        deep = is_deep(settings.hidden, settings.trunk)
        group = chosen_group(settings.group)
        if design is None:
            intercept = bool(settings.fit_intercept) and not deep
            own = terms_of(settings, group)
            random = "auto" if own else random_of(settings.random, group, cast(Any, group))
            if pooled and group is not None and not own:
                own = (Term(str(group), random, settings.covariance),)
            terms = (*own, *(Term(name, INTERCEPT, settings.covariance) for name in pooled))
            if pooled:
                columns = group if isinstance(group, tuple) else () if group is None else (group,)
                group = chosen_group((*columns, *pooled))
                random, terms = ("auto", terms) if len(terms) > 1 else (INTERCEPT, ())
            return Spec(
                *(group, random, settings.covariance, deep, intercept),
                *(stated.known_coef, stated.names, terms, pooled),
            )
        syntax = parse(design.formula)
        terms = _terms_of_formula(syntax, design, settings.covariance, deep)
        spec = Spec(
            syntax.group,
            _random_of_network(syntax, syntax.random) if deep and not terms else design.random,
            _covariance(syntax.factors[:1], settings.covariance),
            deep,
            has_intercept(syntax) and not deep,
            design.known_coef,
            design.facts,
            terms,
        )
        spec._check_settings(settings, syntax, design.num_effects or (len(design.random),))
        return spec

    @property
    def num_factors(self) -> int:
        """The number of grouping factors."""
        return len(self.terms) or int(self.group is not None)

    def _check_settings(self, settings: Any, syntax: Syntax, num_effects: tuple[int, ...]) -> None:
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
        if not _is_auto(settings.random) and (syntax.group is None or self.terms):
            said = "what varies by each factor" if self.terms else "that there are no effects"
            raise _contradiction(f"random={settings.random!r}", syntax, said)

    def effects(self, settings: Any, features: tuple[str, ...]) -> tuple[int, ...]:
        """Return the indices of the features with effects."""
        if self.terms:
            return sum(self.effects_by_factor(features), ())
        grouped, deep = self.group is not None, self.deep
        chosen = random_columns(self.random, features, grouped=grouped, deep=deep)
        if settings.formula is not None and not _is_auto(settings.random):
            asked = random_columns(settings.random, features, grouped=grouped, deep=deep)
            if asked != chosen:
                varying = ", ".join(repr(features[j]) for j in chosen)
                said = f"that there are effects of {varying}"
                raise _contradiction(f"random={settings.random!r}", parse(settings.formula), said)
        return chosen

    def effects_by_factor(self, features: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return the indices of every factor's features; empty unless there are several factors."""
        return tuple(
            random_columns(term.random, features, grouped=True, deep=False) for term in self.terms
        )


class Structure(NamedTuple):
    """A model without its data: what a spec makes of named input columns."""

    priors: Priors
    trunk: Trunk
    features: tuple[str, ...]
    random: tuple[int, ...]
    known_coef: tuple[float, ...]
    facts: tuple[str, ...] = ()
    by_factor: tuple[tuple[int, ...], ...] = ()
    """Features with effects of every factor; empty unless there are several factors."""
    effects_priors: tuple[InverseGamma | HalfT | WishartPrecision | HuangWand, ...] = ()

    @staticmethod
    def of(settings: Any, spec: Spec, names: tuple[str, ...], response: Response) -> "Structure":
        """Make a structure from a spec, the estimator's other settings and the inputs' names."""
        check_counts(steps=settings.steps, n_starts=settings.n_starts)
        check_counts(batch_groups=settings.batch_groups)
        check_method(settings.method)
        priors = choose_priors(settings.priors, spec.covariance)
        of_terms = tuple(choose_priors(settings.priors, t.covariance).effects for t in spec.terms)
        features = feature_names(names, spec.intercept)
        if not features:
            raise DataError(
                "there is neither an input column nor an intercept; add one of them to fit."
            )
        trunk = choose_trunk(len(features), settings.hidden, settings.activation, settings.trunk)
        if spec.deep:
            skip = choose_skip(settings, response)
            trunk = Skip(trunk, len(names)) if skip else trunk
            beside = feature_names(names, True) if skip else (INTERCEPT,)
            learnt = _names_of_learnt(trunk.num_features - len(beside), beside)
            features = (*beside, *learnt)
            if skip and settings.priors is None:
                beside_them = functools.partial(beside_inputs, priors, len(names), len(learnt))
                priors = beside_them(correlated=spec.covariance == "full")
                each = (beside_them(correlated=t.covariance == "full") for t in spec.terms)
                of_terms = tuple(own.effects for own in each)
        check_known_coef(spec.known_coef, settings.method, spec.deep)
        random = spec.effects(settings, features)
        structure = Structure(
            *(priors, trunk, features, random, spec.known_coef, spec.facts),
            spec.effects_by_factor(features),
            of_terms,
        )
        check_number_of_parameters(structure, len(names), settings.hidden)
        return structure

    def with_usual_effects(
        self, spec: Spec, x: np.ndarray, codes: np.ndarray, groups: Groups
    ) -> "Structure":
        """Choose the features with effects if that is left to a network.

        ``groups`` are the labels of groups. Of several factors, the one with the most levels has
        the effects that it would have alone, and the others have intercepts: curves by level of
        two factors would explain the same rows.
        """
        if isinstance(groups, dict):
            if not spec.deep:
                return self
            levels = [len(labels) for labels in groups.values()]
            levels = levels[: len(levels) - len(spec.pooled)] or levels
            most = int(np.argmax(levels))
            if not _is_auto(spec.terms[most].random):
                return self
            own = self._usual(x, codes[:, most], levels[most], range(len(self.features)))
            by_factor = (*self.by_factor[:most], own, *self.by_factor[most + 1 :])
            return self._replace(by_factor=by_factor, random=sum(by_factor, ()))
        if not (self.random and _is_auto(spec.random)):
            return self
        return self._replace(random=self._usual(x, codes, len(groups), self.random))

    def _usual(
        self, x: np.ndarray, codes: np.ndarray, num_groups: int, among: Iterable[int]
    ) -> tuple[int, ...]:
        """Return the features ``among`` these that have effects by default.

        A network with a skip connection has no effects of inputs that do not vary within groups,
        which would be effects of the group itself; nor of so many inputs that the groups'
        covariance matrices would cost more than the network; nor, if there are few groups, of what
        it learns. Effects are integrated out and weights are not, so that a bound on the evidence
        prefers a curve per group to one for all, and says nothing about new groups.
        """
        if not isinstance(self.trunk, Skip):
            return tuple(among)
        inputs = range(1, x.shape[1] + 1)
        varying = [j for j in inputs if varies_within(x[:, j - 1], codes)]
        left = set(inputs) - set(varying if len(varying) <= MOST_SLOPES else ())
        if num_groups < GROUPS_OF_LEARNT:
            left |= set(range(x.shape[1] + 1, len(self.features)))
        return tuple(j for j in among if j not in left)

    def with_tails(self, settings: Any, x: np.ndarray) -> "Structure":
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
        if not self.by_factor:
            return MixedModel(self.trunk, response, self.priors, self.random, sweeps, **settings)
        kind = SeveralFactors if response.conjugate else GeneralFactors
        return kind(
            *(self.trunk, response, self.priors, self.random),
            parts=self.effects_priors,
            effects=tuple(map(len, self.by_factor)),
            **settings,
        )

    def named(self, groups: Any) -> Named:
        """Return the names of features, effects and groups; ``groups`` are the labels."""
        fixed = self.features[: len(self.features) - len(self.known_coef)]
        if self.by_factor:
            return Named.of_factors(
                fixed,
                [tuple(self.features[j] for j in random) for random in self.by_factor],
                groups,
            )
        return Named(fixed, tuple(self.features[j] for j in self.random), groups)


def warn_about_few_groups(structure: Structure, spec: Spec, groups: Groups) -> None:
    """Warn if effects of what a network learns were asked for although there are few groups."""
    if not isinstance(structure.trunk, Skip):
        return
    asked = [term.random for term in spec.terms] or [spec.random]
    number = [len(each) for each in (groups.values() if isinstance(groups, dict) else [groups])]
    beside, own = structure.trunk.num_inputs, structure.by_factor or (structure.random,)
    for of_factor, random, num_groups in zip(own, asked, number, strict=True):
        learnt = [structure.features[j] for j in of_factor if j > beside]
        if learnt and num_groups < GROUPS_OF_LEARNT and not _is_auto(random):
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
    """Return the effects of every factor; none unless there are several factors."""
    if len(syntax.factors) < 2:
        return ()
    ends = itertools.accumulate(design.num_effects)
    names: list[Any] = [list(design.random[a:b]) for a, b in itertools.pairwise((0, *ends))]
    if deep:
        names = [_random_of_network(syntax, factor.random) for factor in syntax.factors]
    return tuple(
        Term(factor.name, random, _covariance((factor,), covariance))
        for factor, random in zip(syntax.factors, names, strict=True)
    )


def _covariance(factors: tuple[FactorSyntax, ...], setting: str) -> str:
    return "diagonal" if any(factor.independent for factor in factors) else setting


def _random_of_network(syntax: Syntax, random: tuple[str, ...]) -> str:
    """Return which features of a network have effects; ``random`` is what the bars follow."""
    if syntax.group is None:
        return "auto"
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
    effects = coef.copy()
    if spec.deep:
        coef[0] = np.sqrt(y_unit**2 + y_mean**2)
    if spec.intercept:
        away = (mean * coef) ** 2
        coef[0] = np.sqrt(y_unit**2 + y_mean**2 + np.sum(away[1:]))
        varying = [j for j in structure.random if j > 0]
        if 0 not in structure.random:  # no random intercept absorbs the shift of a column
            effects[varying] = y_unit / size[varying]
        effects[0] = y_unit
        if isinstance(structure.priors.effects, HuangWand):  # correlated slopes may move it as far
            effects[0] = np.sqrt(y_unit**2 + np.sum(away[varying]))
    num_fixed = len(structure.features) - len(structure.known_coef)
    priors = structure.priors
    if not spec.deep and num_rows <= num_fixed + FEW_SPARE:
        priors = dataclasses.replace(priors, noise=HalfT(floor=NO_EXACT_FIT))
    if isinstance(priors.effects.scale, tuple):  # of every feature, so far
        chosen = tuple(priors.effects.scale[j] for j in structure.random)
        effects_prior = dataclasses.replace(priors.effects, scale=chosen or 1.0)
        priors = dataclasses.replace(priors, effects=effects_prior)
    priors = priors.in_units(coef[:num_fixed], effects[list(structure.random)], float(y_unit))
    return structure._replace(priors=priors)


def factors_follow_data(structure: Structure, *data: Any) -> Structure:
    """Do what :func:`follow_data` does for several factors; ``data`` are its other arguments."""
    followed = [
        follow_data(
            structure._replace(
                random=random, priors=dataclasses.replace(structure.priors, effects=prior)
            ),
            *data,
        ).priors
        for random, prior in zip(structure.by_factor, structure.effects_priors, strict=True)
    ]
    own = tuple(priors.effects for priors in followed)
    return structure._replace(priors=followed[0], effects_priors=own)
