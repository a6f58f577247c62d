"""The endpoint set, load accounting and the choice of an endpoint for a request."""
