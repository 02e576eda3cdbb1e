"""Why a run is where it is, in one sentence: the same value in a list, a heading, a terminal, JSON and an alert."""
