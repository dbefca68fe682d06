//! Goes through the elements of two layouts, interval by interval.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use crate::layout::Holding;

/// Calls `visit` with each interval that some target holds, between neighbouring edges of all holdings, in order: the
/// sources and the targets that hold it, each in rank order.
pub(super) fn sweep<'a, E>(
    sources: &'a [Holding],
    targets: &'a [Holding],
    mut visit: impl FnMut(Range<u64>, &[&'a Holding], &[&'a Holding]) -> Result<(), E>,
) -> Result<(), E> {
    let edges = sources.iter().chain(targets).flat_map(|one| [one.elements.start, one.elements.end]);
    let edges: Vec<u64> = edges.collect::<BTreeSet<u64>>().into_iter().collect();
    let (mut sources, mut targets) = (Active::new(sources), Active::new(targets));
    for pair in edges.windows(2) {
        let (from, to) = (sources.at(pair[0]), targets.at(pair[0]));
        if !to.is_empty() {
            visit(pair[0]..pair[1], from, to)?;
        }
    }
    Ok(())
}

/// The holdings of a layout around a place that only moves on.
struct Active<'a> {
    /// Not reached yet, the next one last.
    ahead: Vec<&'a Holding>,
    here: Vec<&'a Holding>,
}

impl<'a> Active<'a> {
    fn new(holdings: &'a [Holding]) -> Active<'a> {
        let mut ahead: Vec<&Holding> = holdings.iter().filter(|one| !one.elements.is_empty()).collect();
        ahead.sort_by_key(|one| Reverse(one.elements.start));
        Active { ahead, here: Vec::new() }
    }

    fn at(&mut self, place: u64) -> &[&'a Holding] {
        self.here.retain(|one| one.elements.end > place);
        let mut has_come = false;
        while let Some(next) = self.ahead.pop_if(|next| next.elements.start <= place) {
            self.here.push(next);
            has_come = true;
        }
        if has_come {
            self.here.sort_by_key(|one| (one.rank, one.offset));
        }
        &self.here
    }
}
