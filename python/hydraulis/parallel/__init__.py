"""Parallelism that is applied to a model from outside: groups, tensor, context, pipeline, collectives."""
