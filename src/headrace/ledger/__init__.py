"""Accounts, reservations, settlements, prices and the journal; the only mover of money.

Reading order: `reservation` (the values), `rating`, `admission` (who may start), `journal` (what
is remembered, with `frames`, `segments`, `segment_writer`, `replay`), `meter` (both as one, what
a gateway calls), `shipper` (from the journal to `storage.LedgerStore`, where the book is kept).
"""
