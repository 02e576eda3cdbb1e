"""The values that client and worker exchange; no input or output."""
