"""Accounts, reservations, settlements, prices and the journal; the only mover of money."""
