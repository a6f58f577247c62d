"""Money in and out by a payment provider: recharges, invoices, refunds.

Off unless a provider is configured. What is owed and what was credited is the ledger's to say; here
lies only what was asked of the provider, and what it answered.
"""
