"""Parts of saving that Estimators and Keras' `fit` share: whole files, damage, snapshots."""

__all__: list[str] = []  # internal
