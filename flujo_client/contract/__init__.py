"""What crosses between client and worker: values only, no doors."""
