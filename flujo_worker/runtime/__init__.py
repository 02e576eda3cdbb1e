"""What agents, user code and attempts share: the running attempt, faults, loaded code, arguments."""
