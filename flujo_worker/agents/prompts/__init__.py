"""Prompts from templates: Jinja2, in a sandbox with bounds. The one door to Jinja2."""

from flujo_worker.agents.prompts.render import render_template, render_text

__all__ = ["render_template", "render_text"]
