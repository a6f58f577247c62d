"""Commands: the only code that reads arguments and environment and picks concrete classes."""
