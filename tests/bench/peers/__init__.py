"""Other projects, each from wheels in a separate environment, with the workloads W1, W2, W3 and W7.

A module of this package runs in its project's environment, so it imports that project and the standard library only.
"""
