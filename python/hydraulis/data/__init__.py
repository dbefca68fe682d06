"""From documents to packed tensors: the corpus, the global batches and the collation of micro-batches."""
