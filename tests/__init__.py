"""Tests of both packages, of the documents, and of what is delivered."""
