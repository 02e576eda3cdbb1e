"""Find the code that runs were started with and the code that is here, compare them, and move contexts from one to the other."""
