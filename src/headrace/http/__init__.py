"""The one HTTP client and the server helpers: pools, deadlines, disconnects, drain."""
