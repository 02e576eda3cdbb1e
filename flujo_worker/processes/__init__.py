"""Processes of a worker's own, each started by `python -m`: an attempt in quarantine, a trial of an import, a hand-back."""
