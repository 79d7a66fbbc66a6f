"""Keras models as Estimators, and the choice of the Keras version."""
