"""From usage to an invoice: what is owed for a period, and the paper that says so.

Pure functions of what the ledger and the price books hold: the same ledger gives the same bytes.
Money itself moves in `ledger` and `storage` alone.
"""
