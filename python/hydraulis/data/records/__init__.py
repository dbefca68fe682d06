"""Files that hold records, one kind of file each, read in pieces that processes can share out."""
