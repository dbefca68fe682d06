//! The numbers of sequences of the replicas during the assignment.

/// The sequences of each replica so far, of which each shall have from `fewest` to `most`.
#[derive(Clone, Debug)]
pub(super) struct Quotas {
    taken: Vec<usize>,
    fewest: usize,
    most: usize,
    /// The sequences that are not assigned yet.
    left: usize,
    /// The sequences that the replicas lack for their fewest.
    lacking: usize,
}

impl Quotas {
    pub(super) fn new(sequences: usize, replicas: usize, fewest: usize, are_equal: bool) -> Quotas {
        let most = if are_equal { sequences.div_ceil(replicas) } else { sequences };
        Quotas { taken: vec![0; replicas], fewest, most, left: sequences, lacking: fewest * replicas }
    }

    /// Whether a replica may have one more, so that enough are left for the replicas with too few.
    pub(super) fn admit(&self, replica: usize) -> bool {
        let taken = self.taken[replica];
        taken < self.most && (taken < self.fewest || self.left > self.lacking)
    }

    pub(super) fn take(&mut self, replica: usize) {
        self.lacking -= usize::from(self.taken[replica] < self.fewest);
        self.taken[replica] += 1;
        self.left -= 1;
    }
}
