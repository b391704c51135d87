"""What scikit-learn asks of an estimator, without loading scikit-learn before it asks.

``sklearn.base`` takes about as long to load as a linear mixed model takes to fit, because it brings
SciPy's statistics package with it. An estimator needs little of it: parameters by name, tags that
say what it is, and requests for metadata. Scikit-learn's tools (``clone``, pipelines, searches)
look for these methods, not for a base class.
"""

import functools
import inspect
from typing import TYPE_CHECKING, Any, ClassVar, Self

FITTED = "posterior_"
"""The attribute that a fit leaves behind."""
ROUTED = ("fit", "predict", "predict_proba", "score")
"""Methods with arguments beside X and y, which scikit-learn's tools may pass on."""


class Estimator:
    """Base of estimators: parameters are the arguments of ``__init__``, kept as they were given."""

    estimator_type: ClassVar[str]
    """``"regressor"`` or ``"classifier"``."""
    if TYPE_CHECKING:  # Both kinds have the first of these, and one of them each of the others.

        def predict(self, X: Any) -> Any: ...
        @property
        def classes_(self) -> Any: ...
        def predict_proba(self, X: Any) -> Any: ...
        def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Any, Any]: ...

    @classmethod
    @functools.cache
    def _get_param_names(cls) -> list[str]:
        """Return the names of the parameters, sorted."""
        return sorted(name for name in inspect.signature(cls.__init__).parameters if name != "self")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; ``deep`` makes no difference, as none is an estimator."""
        return {name: getattr(self, name) for name in self._get_param_names()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name and return the estimator."""
        known = self._get_param_names()
        for name, value in params.items():
            if name not in known:
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {self}. "
                    f"Valid parameters are: {known!r}."
                )
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        signature = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in ((name, getattr(self, name)) for name in signature if name != "self")
            if repr(value) != repr(signature[name].default)
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _repr_html_(self) -> str:
        from sklearn.utils import estimator_html_repr

        return estimator_html_repr(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, FITTED)

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import ClassifierTags, RegressorTags, Tags, TargetTags

        classifies = self.estimator_type == "classifier"
        return Tags(
            estimator_type=self.estimator_type,
            target_tags=TargetTags(required=True),
            transformer_tags=None,
            classifier_tags=ClassifierTags(multi_class=False) if classifies else None,
            regressor_tags=None if classifies else RegressorTags(),
        )

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R2 of the predictions of a regressor, the accuracy of those of a classifier."""
        from sklearn.metrics import accuracy_score, r2_score

        measure = accuracy_score if self.estimator_type == "classifier" else r2_score
        return measure(y, self.predict(X), sample_weight=sample_weight)

    def get_metadata_routing(self) -> Any:
        """Return which arguments scikit-learn's tools are to pass on, and under which names."""
        from sklearn.utils.metadata_routing import MetadataRequest

        if hasattr(self, "_metadata_request"):
            return self._metadata_request
        request = MetadataRequest(owner=self)
        for method in ROUTED:
            for name in self._passed_to(method):
                getattr(request, method).add_request(param=name, alias=None)
        return request

    def set_fit_request(self, **aliases: Any) -> Self:
        """Say which arguments of ``fit`` tools are to pass on: True, False or another name each."""
        return self._set_request("fit", aliases)

    def set_predict_request(self, **aliases: Any) -> Self:
        """Say which arguments of ``predict`` tools are to pass on, as :meth:`set_fit_request`."""
        return self._set_request("predict", aliases)

    def set_predict_proba_request(self, **aliases: Any) -> Self:
        """Say which arguments of ``predict_proba`` tools are to pass on."""
        return self._set_request("predict_proba", aliases)

    def set_score_request(self, **aliases: Any) -> Self:
        """Say whether tools are to pass ``sample_weight`` on to ``score``."""
        return self._set_request("score", aliases)

    def _set_request(self, method: str, aliases: dict[str, Any]) -> Self:
        if unknown := aliases.keys() - set(self._passed_to(method)):
            raise TypeError(f"{method}() has no argument {', '.join(sorted(unknown))}.")
        request = self.get_metadata_routing()
        for name, alias in aliases.items():
            getattr(request, method).add_request(param=name, alias=alias)
        self._metadata_request = request
        return self

    def _passed_to(self, method: str) -> list[str]:
        """Return the names of the arguments of a method beside X and y."""
        function = getattr(type(self), method, None)
        arguments = [] if function is None else inspect.signature(function).parameters
        return [name for name in arguments if name not in ("self", "X", "y")]


def check_is_fitted(estimator: Estimator) -> None:
    """Refuse an estimator that has not been fitted, as scikit-learn does."""
    if not hasattr(estimator, FITTED):
        from sklearn.exceptions import NotFittedError

        raise NotFittedError(
            f"This {type(estimator).__name__} instance is not fitted yet. Call 'fit' with "
            "appropriate arguments before using this estimator."
        )


def copied(estimator: Any) -> Any:
    """Return an estimator of the same parameters that has not been fitted."""
    return type(estimator)(**estimator.get_params())
