"""Model files: readers, architecture specs, model sources and the local cache."""
