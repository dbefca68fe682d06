//! The capacities of the classes that placements make, computed on first use.

use std::sync::OnceLock;

use crate::capacity::ClassCapacity;
use crate::cost::ClassCost;
use crate::spec::CapacityBudget;

/// A list that only grows: a capacity stays where it is, and a query for a known class returns it.
///
/// An entry is a pure function of its class: the order of queries changes nothing.
#[derive(Debug)]
pub(super) struct PlacedClasses {
    first: Link,
    budget: CapacityBudget,
}

type Link = OnceLock<Box<Entry>>;

#[derive(Debug)]
struct Entry {
    capacity: ClassCapacity,
    next: Link,
}

impl PlacedClasses {
    pub(super) fn new(budget: CapacityBudget) -> PlacedClasses {
        PlacedClasses { first: Link::new(), budget }
    }

    /// The capacity of this class.
    pub(super) fn capacity(&self, cost: &ClassCost) -> &ClassCapacity {
        let mut link = &self.first;
        loop {
            let new = || Box::new(Entry { capacity: ClassCapacity::new(cost.clone(), self.budget), next: Link::new() });
            let entry = link.get_or_init(new);
            if entry.capacity.cost().class() == cost.class() {
                return &entry.capacity;
            }
            link = &entry.next;
        }
    }
}

impl Drop for PlacedClasses {
    /// Drops one entry after another: entries that drop their successors could overflow the stack.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut entry) = next {
            next = entry.next.take();
        }
    }
}
