"""Model functions with a model in stages on several devices.

Most Estimators never import `model`, which builds it.
"""

__all__: list[str] = []  # internal
