"""Web pages for operators and customers, served by the control plane."""
