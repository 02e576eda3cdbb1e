"""What users write: steps and pipelines, what can be refused before sending, and the plan that is sent."""
