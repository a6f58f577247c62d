"""Metric and log-field names, declared once; trace context; the JSON log formatter."""
