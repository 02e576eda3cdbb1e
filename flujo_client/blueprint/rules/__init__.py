"""Rules for blueprints that can be read: a module for each letter of rules."""
