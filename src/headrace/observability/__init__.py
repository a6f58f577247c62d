"""Metric and log-field names, declared once; values and their Prometheus text.

Reading order: `metrics` (declarations, histograms, rendering), `engine_metrics`.
"""
