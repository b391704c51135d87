"""scikit-learn style estimators."""

from nghvi.estimators.classifier import MixedClassifier as MixedClassifier
from nghvi.estimators.formula import mixed as mixed
from nghvi.estimators.regressor import MixedRegressor as MixedRegressor
