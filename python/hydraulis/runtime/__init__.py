"""Carries plans out: the only package that knows both a plan and tensors."""
