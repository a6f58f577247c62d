"""Kubernetes: the objects of headrace itself and of its replicas, and what applies them."""
