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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{RankPool, preset};
    use crate::spec::Cluster;

    /// Queries of two threads for the same classes, in opposite orders, return the same capacities.
    #[test]
    fn a_class_has_one_capacity_in_all_threads() {
        let cost = CostModel::new(preset("llama-32b-a800").unwrap(), Cluster::new(64, 8).unwrap());
        let placed = PlacedClasses::new(&cost, CapacityBudget::ONLINE);
        let scheme: Scheme = "<tp8>".parse().unwrap();
        let class = |number: u16| {
            let pool = RankPool { speed: 1.0 - 0.01 * f64::from(number), ..RankPool::of_profile(cost.profile()) };
            ReplicaClass::on(scheme, pool)
        };
        let found = |number: u16| std::ptr::from_ref(placed.capacity(class(number), &cost).unwrap()) as usize;
        let (forwards, backwards) = std::thread::scope(|scope| {
            let one = scope.spawn(|| (0..40).map(found).collect::<Vec<_>>());
            let other = scope.spawn(|| (0..40).rev().map(found).collect::<Vec<_>>());
            (one.join().unwrap(), other.join().unwrap())
        });
        assert!(forwards.iter().eq(backwards.iter().rev()));
        assert_eq!(forwards, (0..40).map(found).collect::<Vec<_>>());
        assert!((1..40).all(|number| forwards[number] != forwards[0]));
        let unknown = ReplicaClass::on("<tp2,cp4>".parse().unwrap(), RankPool::of_profile(cost.profile()));
        assert_eq!(placed.capacity(unknown, &cost).unwrap_err().code(), "scheme_unknown");
    }
}
