"""Reconcilers that make the observed state follow the desired one; the admin API.

Reading order: `world` (what is seen), `actions` (what can be done), `decide` (pure: from one to
the other), `observer` and `applier` (the thin hands), `work_queue` and `reconciler` (the loop).
The admin API is in `admin/`.
"""
