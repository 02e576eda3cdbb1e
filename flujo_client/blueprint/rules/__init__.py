"""What is wrong in a blueprint that reads well: a module for each letter of rules."""
