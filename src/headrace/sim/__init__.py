"""Virtual clock and fake engines, shared by tests and simulations."""
