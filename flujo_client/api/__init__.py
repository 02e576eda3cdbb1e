"""The client itself: enqueue pipelines, follow and steer their runs."""
