"""What all workers share to spare the services they call: circuit breakers and cached results, stored in Redis."""
