"""What client and worker exchange: values only, no input or output."""
