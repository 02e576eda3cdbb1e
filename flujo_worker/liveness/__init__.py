"""Liveness: of this process, of its event loop, and of the other worker processes of the machine."""
