"""What all workers share to spare the services they call: circuit breakers, kept in Redis."""
