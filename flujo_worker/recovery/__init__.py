"""What a worker does beside its attempts: find lost ones, admit, prune, deliver hooks, put aside what breaks processes, check health."""
