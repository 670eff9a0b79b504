"""The parts of predictors and estimators: regressions, forests, cost curves and distributions."""
