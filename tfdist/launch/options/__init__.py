"""The options of `tfdist run`: parser, rules between options, config file, hosts, and command."""
