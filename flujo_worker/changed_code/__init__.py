"""The code that runs were begun with and the code that is here: find it, compare it, and move contexts from one to the other."""
