"""Notices a rank that ended or stands still, and names it."""
