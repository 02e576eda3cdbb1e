"""The only code that moves a run: decide, commit, publish."""
