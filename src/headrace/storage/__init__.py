"""The store of desired state and the ledger's tables: one SQL layer, its migrations."""
