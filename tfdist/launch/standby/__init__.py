"""The standby of an agent: an interpreter that has imported what the program will import."""

__all__: list[str] = []  # internal
