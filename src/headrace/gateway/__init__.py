"""The public API: authenticate, admit, route, stream, settle."""
