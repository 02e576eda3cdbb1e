"""Signs of life: of this process, of its event loop, and of the worker processes beside it."""
