"""The failure of a run: which worker failed first, why, what it means, and advice."""

__all__: list[str] = []  # internal
