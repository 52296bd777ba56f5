"""The cases, a module a subject."""
