"""The work of a worker apart from attempts: recover lost ones, admit runs, prune, deliver hooks, isolate attempts that break processes, check health."""
