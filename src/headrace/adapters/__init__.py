"""What headrace knows about each kind of engine: data and pure functions."""
