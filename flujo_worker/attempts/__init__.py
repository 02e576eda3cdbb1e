"""One attempt at one step: what an agent is given, how it is called, and what its errors mean."""
