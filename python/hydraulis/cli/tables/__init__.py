"""Tables and sentences that commands print."""
