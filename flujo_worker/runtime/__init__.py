"""Shared by agents, user code and attempts: the running attempt, faults, loaded code, arguments."""
