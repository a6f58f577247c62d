"""What starts, watches and stops replicas: local processes first."""
