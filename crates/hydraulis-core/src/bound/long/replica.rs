//! What a replica of a class holds by a time, with whole long sequences.

use crate::bound::dual_program::ClassLimits;
use crate::bound::long::items::LongGroup;
use crate::bound::long::stages::Stages;
use crate::units::{Millis, count};

/// Sequences that just fill a replica may seem too long by this share.
pub(super) const ROUNDING: f64 = 1e-9;

/// The capacity of one replica by some time.
#[derive(Clone, Debug)]
pub(super) struct Replica {
    /// The numbers of micro-batches that hold the most, each with its room.
    pub(super) rooms: Vec<Room>,
    /// The long groups that the replica admits.
    pub(super) items: Vec<Item>,
    /// The longest sequence that is admitted and alone ends by that time.
    pub(super) limit: f64,
    /// The stages of a pipeline.
    pub(super) stages: Option<Stages>,
}

/// The room of one number of micro-batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Room {
    pub(super) work: f64,
    pub(super) tokens: f64,
    /// Number of micro-batches, or of groups of them that share one limit of tokens.
    pub(super) bins: usize,
    /// Fixed costs of the micro-batches.
    pub(super) fixed: f64,
}

/// A sequence of a long group on this class.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Item {
    pub(super) group: usize,
    pub(super) number: usize,
    pub(super) work: f64,
    pub(super) tokens: f64,
    /// The most sequences of this length or longer ones that share a micro-batch; 4 stands for any number.
    pub(super) together: usize,
}

impl Replica {
    /// The capacity by `end` of a batch of so many sequences.
    pub(super) fn by(
        class: &ClassLimits,
        end: Millis,
        sequences: usize,
        counted: usize,
        long: &[LongGroup],
    ) -> Replica {
        if class.most == 0 {
            return Replica { rooms: Vec::new(), items: Vec::new(), limit: 0.0, stages: None };
        }
        let cost = class.capacity.cost();
        let limit = class.longest_by(end);
        let admitted = long.iter().enumerate().filter(|(_, group)| group.length <= limit);
        let most_tokens = cost.in_flight_limit().tokens.as_f64();
        let items = admitted.map(|(group, &LongGroup { length, number })| {
            let work = (cost.quadratic_ms_per_token2() * length + cost.linear_ms_per_token()) * length;
            let together = (1..4).find(|&together| length * count(together + 1) > most_tokens);
            Item { group, number, work, tokens: length, together: together.unwrap_or(4) }
        });
        let items: Vec<Item> = items.collect();
        let rooms = rooms(class, end, sequences, counted, items.iter().map(|item| item.number).sum());
        Replica { rooms, items, limit, stages: Stages::new(cost, end) }
    }
}

/// The rooms of all numbers of micro-batches, without those that hold no more than another one; `long` sequences need
/// at most as many micro-batches.
fn rooms(class: &ClassLimits, end: Millis, sequences: usize, counted: usize, long: usize) -> Vec<Room> {
    let (cost, mut rooms) = (class.capacity.cost(), Vec::<Room>::new());
    let (limit, linear, fixed) = (cost.in_flight_limit(), cost.linear_ms_per_token(), cost.fixed_ms().0);
    let full = cost.sequence_ms(limit.tokens).0;
    let most = limit.most_micro_batches(sequences);
    let counted = sequences.max(most.min(counted));
    let tokens_of = |work: f64, room: f64| if linear > 0.0 { room.min(work / linear) } else { room };
    let (mut most_work, mut most_tokens) = (0.0_f64, 0.0_f64);
    for micro_batches in 1..=most {
        let on_slowest = class.capacity.work_on_slowest(micro_batches, end);
        if on_slowest <= 0.0 {
            break;
        }
        let is_full = linear * most_tokens >= on_slowest * (1.0 - 1e-12);
        let bins = limit.groups(micro_batches);
        if micro_batches > counted || (on_slowest <= most_work && is_full) {
            // One room for this and all greater numbers: work falls with the number, and nothing else limits it.
            let tokens = tokens_of(on_slowest, limit.most_tokens(most));
            rooms.push(Room { work: on_slowest, tokens, bins: usize::MAX, fixed: fixed * count(micro_batches) });
            break;
        }
        let work = class.capacity.most_work(micro_batches, end).min(count(bins) * full);
        let room = Room {
            work,
            tokens: tokens_of(work, limit.most_tokens(micro_batches)),
            bins,
            fixed: fixed * count(micro_batches),
        };
        let holds_no_more = |other: &Room| {
            other.work >= room.work && other.tokens >= room.tokens && other.bins.min(long) >= room.bins.min(long)
        };
        if work > 0.0 && !rooms.iter().any(holds_no_more) {
            rooms.push(room);
        }
        (most_work, most_tokens) = (most_work.max(work), most_tokens.max(room.tokens));
    }
    rooms
}
