"""Reconcilers that make the observed state follow the desired one; the admin API."""
