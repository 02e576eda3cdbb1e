"""Ready-made pipelines: refinement, tree search, checklists and agentic loops, built from the steps of `flujo_client/pipeline`."""
