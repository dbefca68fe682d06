"""Parameters gathered from their owners, gradients reduced to them, bucket by bucket."""
