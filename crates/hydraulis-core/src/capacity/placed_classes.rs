//! The capacities of the classes that placements make, computed on first use.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use crate::capacity::ClassCapacity;
use crate::cost::{CostModel, ReplicaClass};
use crate::error::Result;
use crate::spec::{CapacityBudget, Scheme};

/// A list for each scheme that only grows: a capacity stays where it is, and a query for a known class returns it.
///
/// An entry is a pure function of its class: the order of queries changes nothing.
#[derive(Debug)]
pub(super) struct PlacedClasses {
    first: BTreeMap<Scheme, Link>,
    budget: CapacityBudget,
}

type Link = OnceLock<Box<Entry>>;

#[derive(Debug)]
struct Entry {
    capacity: ClassCapacity,
    next: Link,
}

impl PlacedClasses {
    /// No class yet of the schemes of this cost model.
    pub(super) fn new(cost: &CostModel, budget: CapacityBudget) -> PlacedClasses {
        PlacedClasses { first: cost.best().iter().map(|best| (best.scheme(), Link::new())).collect(), budget }
    }

    /// The capacity of this class under that cost model; it must admit at least one token.
    pub(super) fn capacity(&self, class: ReplicaClass, cost: &CostModel) -> Result<&ClassCapacity> {
        cost.profile().scheme(class.scheme)?;
        let mut link = &self.first[&class.scheme];
        while let Some(entry) = link.get() {
            if *entry.capacity.cost().class() == class {
                return Ok(&entry.capacity);
            }
            link = &entry.next;
        }
        let capacity = ClassCapacity::new(cost.class(class)?, self.budget);
        loop {
            // Another thread may add a class meanwhile, even this one.
            let entry = link.get_or_init(|| Box::new(Entry { capacity: capacity.clone(), next: Link::new() }));
            if entry.capacity.cost().class() == capacity.cost().class() {
                return Ok(&entry.capacity);
            }
            link = &entry.next;
        }
    }
}

impl Drop for PlacedClasses {
    /// Drops one entry after another: entries that drop their successors could overflow the stack.
    fn drop(&mut self) {
        for first in self.first.values_mut() {
            let mut next = first.take();
            while let Some(mut entry) = next {
                next = entry.next.take();
            }
        }
    }
}
