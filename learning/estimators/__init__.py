"""Regressions, forests, cost curves and distributions: what predictors and estimators are made of."""
