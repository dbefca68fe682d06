"""The length index: documents are tokenised once, by several processes, and then mapped."""
