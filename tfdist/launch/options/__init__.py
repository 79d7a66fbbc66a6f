"""The options of `tfdist run`: parser, rules between options, config file, hosts, and command."""

__all__: list[str] = []  # internal
