//! Moves between any two layouts, carried out on plain buffers.

use std::collections::{BTreeMap, BTreeSet};

use hydraulis_core::layout::{Holding, Move, Movement, Put, Round, Side, gather, spread};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::world::at;

const ELEMENTS: u64 = 40;
const RANKS: u32 = 9;

/// What each rank's buffer holds at each place: the element, and a value.
type Buffers = Vec<Vec<f64>>;

/// Holdings of random ranks: replicated, sharded, in pieces, with gaps. A rank holds an element once.
fn layout() -> impl Strategy<Value = Vec<Holding>> {
    let piece = (0..RANKS, 0..ELEMENTS, 1..ELEMENTS, 0..3_u64);
    vec(piece, 1..14).prop_map(|pieces| {
        let mut held: BTreeSet<(u32, u64)> = BTreeSet::new();
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        let mut holdings = Vec::new();
        for (rank, start, elements, gap) in pieces {
            let free = (start..(start + elements).min(ELEMENTS)).take_while(|&element| held.insert((rank, element)));
            let number = free.count() as u64;
            let end = ends.entry(rank).or_default();
            if number > 0 {
                holdings.push(Holding { rank, elements: start..start + number, offset: *end + gap });
                *end += gap + number;
            }
        }
        holdings
    })
}

/// The same elements on one rank, so that nothing is missing.
fn with_everything(mut holdings: Vec<Holding>, rank: u32) -> Vec<Holding> {
    holdings.retain(|one| one.rank != rank);
    holdings.push(Holding { rank, elements: 0..ELEMENTS, offset: 3 });
    holdings
}

/// Every element that a holding has, with its place in the buffer.
fn places(holdings: &[Holding]) -> impl Iterator<Item = (u32, u64, u64)> {
    holdings.iter().flat_map(|one| {
        one.elements.clone().map(|element| (one.rank, element, one.offset + element - one.elements.start))
    })
}

/// Buffers that hold `value(rank, element)` where they hold anything.
fn buffers(holdings: &[Holding], value: impl Fn(u32, u64) -> f64) -> Buffers {
    let mut buffers: Buffers = vec![Vec::new(); RANKS as usize];
    for (rank, element, place) in places(holdings) {
        let buffer = &mut buffers[rank as usize];
        buffer.resize(buffer.len().max(at(place) + 1), f64::NAN);
        buffer[at(place)] = value(rank, element);
    }
    buffers
}

/// Fills the targets round by round, and refuses a round whose moves could disturb each other.
fn carry_out(movement: &Movement, sources: &Buffers, targets: &mut Buffers) {
    for round in &movement.rounds {
        assert_undisturbed(round);
        for one in &round.moves {
            for index in 0..one.elements {
                let from = if round.reads == Side::Sources { sources } else { &*targets };
                let value = from[one.from as usize][at(one.from_offset + index)];
                let place = &mut targets[one.to as usize][at(one.to_offset + index)];
                *place = if round.put == Put::Add { *place + value } else { value };
            }
        }
    }
}

/// No place is both read and written, none written twice but by additions, and no round is empty.
fn assert_undisturbed(round: &Round) {
    let places = |rank: u32, offset: u64, one: &Move| (offset..offset + one.elements).map(move |place| (rank, place));
    let mut written = BTreeSet::new();
    for place in round.moves.iter().flat_map(|one| places(one.to, one.to_offset, one)) {
        assert!(written.insert(place) || round.put == Put::Add, "{place:?} is written twice");
    }
    assert!(!written.is_empty());
    let mut read = round.moves.iter().flat_map(|one| places(one.from, one.from_offset, one));
    assert!(round.reads == Side::Sources || read.all(|place| !written.contains(&place)));
}

fn sent(movement: &Movement) -> u64 {
    movement.moves().filter(|one| one.is_sent()).map(|one| one.elements).sum()
}

fn sent_by(movement: &Movement, rank: u32) -> u64 {
    movement.moves().filter(|one| one.is_sent() && one.from == rank).map(|one| one.elements).sum()
}

fn received_by(movement: &Movement, rank: u32) -> u64 {
    movement.moves().filter(|one| one.is_sent() && one.to == rank).map(|one| one.elements).sum()
}

fn crossing(movement: &Movement, node: u32) -> u64 {
    movement.moves().filter(|one| one.from / node != one.to / node).map(|one| one.elements).sum()
}

fn part(rank: u32, element: u64) -> f64 {
    f64::from(1 + rank) * 1000.0 + f64::from(u32::try_from(element).unwrap())
}

/// The ranks that hold an element.
fn holders(holdings: &[Holding], element: u64) -> Vec<u32> {
    let mut ranks: Vec<u32> =
        holdings.iter().filter(|one| one.elements.contains(&element)).map(|one| one.rank).collect();
    ranks.sort_unstable();
    ranks
}

fn nodes_of(ranks: &[u32], node: u32) -> BTreeSet<u32> {
    ranks.iter().map(|rank| rank / node).collect()
}

/// How many of these are not among the others.
fn missing<T: Ord>(needed: &BTreeSet<T>, held: &BTreeSet<T>) -> u64 {
    needed.difference(held).count() as u64
}

/// The least that a sum of one element is sent: to whichever rank knows it first, and from there.
fn least_sent_of_sum(parts: &[u32], targets: &[u32]) -> u64 {
    let without = |ranks: &[u32], first: u32| ranks.iter().filter(|&&rank| rank != first).count() as u64;
    let ways = (0..RANKS).map(|first| without(parts, first) + without(targets, first));
    if parts.is_empty() || targets.is_empty() { 0 } else { ways.min().unwrap() }
}

/// The least of that which crosses nodes, where only targets have room: by any target that may know the sum first.
fn least_crossing_of_sum(parts: &[u32], targets: &[u32], node: u32) -> u64 {
    let is_of_both = |rank: &&u32| parts.contains(rank);
    let shared: Vec<u32> = targets.iter().filter(is_of_both).copied().collect();
    let leaving = |of: u32| if nodes_of(&shared, node).contains(&of) { 1 } else { count_in(parts, of, node) };
    let crossing = |adder: &u32| {
        let own = BTreeSet::from([adder / node]);
        let in_: u64 = nodes_of(parts, node).difference(&own).map(|&of| leaving(of)).sum();
        in_ + missing(&nodes_of(targets, node), &own)
    };
    let adders = if shared.is_empty() { targets } else { &shared };
    if parts.is_empty() { 0 } else { adders.iter().map(crossing).min().unwrap_or(0) }
}

fn count_in(ranks: &[u32], of: u32, node: u32) -> u64 {
    ranks.iter().filter(|&&rank| rank / node == of).count() as u64
}

/// A number for each element of the ranks that hold it before and after, added up.
fn over_elements(sources: &[Holding], targets: &[Holding], number: impl Fn(&[u32], &[u32]) -> u64) -> u64 {
    (0..ELEMENTS).map(|element| number(&holders(sources, element), &holders(targets, element))).sum()
}

proptest! {
    #[test]
    fn copies_arrive_where_they_are_needed_with_the_least_that_can_be_sent(
        sources in layout(), whole in 0..RANKS, targets in layout(), node in 1..5_u32,
    ) {
        let sources = with_everything(sources, whole);
        let movement = spread(&sources, &targets, node).unwrap();
        let value = |_, element| part(0, element);
        let mut arrived = buffers(&targets, |_, _| -1.0);
        carry_out(&movement, &buffers(&sources, value), &mut arrived);
        prop_assert_eq!(format!("{arrived:?}"), format!("{:?}", buffers(&targets, value)));
        let set = |ranks: &[u32], node| nodes_of(ranks, node);
        let least = |node| over_elements(&sources, &targets, |from, to| missing(&set(to, node), &set(from, node)));
        prop_assert_eq!(sent(&movement), least(1));
        prop_assert_eq!(crossing(&movement, node), least(node));
        prop_assert!(movement.rounds.len() <= 2);
    }

    #[test]
    fn sums_are_those_of_all_parts_with_the_least_that_can_be_sent(
        sources in layout(), targets in layout(), node in 1..5_u32,
    ) {
        let sum = |_, element| holders(&sources, element).into_iter().fold(0.0, |sum, rank| sum + part(rank, element));
        let movement = gather(&sources, &targets, node);
        let mut sums = buffers(&targets, |_, _| 0.0);
        carry_out(&movement, &buffers(&sources, part), &mut sums);
        prop_assert_eq!(format!("{sums:?}"), format!("{:?}", buffers(&targets, sum)));
        prop_assert_eq!(sent(&movement), over_elements(&sources, &targets, least_sent_of_sum));
        let least_crossing = |parts: &[u32], to: &[u32]| least_crossing_of_sum(parts, to, node);
        prop_assert_eq!(crossing(&movement, node), over_elements(&sources, &targets, least_crossing));
        prop_assert!(movement.rounds.len() <= 4);
    }

    /// Parts whose sum depends on its order: all targets agree to the bit, and so does a second movement.
    #[test]
    fn all_targets_have_the_same_sum(sources in layout(), node in 1..5_u32) {
        let targets: Vec<Holding> = (0..RANKS).map(|rank| holding(rank, 0..ELEMENTS)).collect();
        let parts = buffers(&sources, |rank, element| 1.0 / (part(rank, element) + 0.1));
        let gathered = || {
            let mut sums = buffers(&targets, |_, _| 0.0);
            carry_out(&gather(&sources, &targets, node), &parts, &mut sums);
            sums
        };
        let sums = gathered();
        prop_assert!(sums.iter().all(|one| *one == sums[0]));
        prop_assert_eq!(gathered(), sums);
    }
}

fn holding(rank: u32, elements: std::ops::Range<u64>) -> Holding {
    Holding { rank, elements, offset: 0 }
}

#[test]
fn senders_share_the_load() {
    let sources: Vec<Holding> = (0..4).map(|rank| holding(rank, 0..1000)).collect();
    let targets: Vec<Holding> = (4..7).map(|rank| holding(rank, 0..1000)).collect();
    let moves = spread(&sources, &targets, 8).unwrap();
    assert_eq!([0, 1, 2, 3].map(|rank| sent_by(&moves, rank)), [750; 4]);
    // Three long runs each, one for each receiver.
    assert_eq!(moves.moves().count(), 12);
    let near = spread(&sources, &[holding(4, 0..1000)], 5).unwrap();
    assert_eq!(near.moves().map(|one| one.elements).collect::<Vec<_>>(), [250; 4]);
    // A sender of the receiver's own node does it alone.
    let nearest = spread(&[holding(0, 0..1000), holding(3, 0..1000)], &[holding(2, 0..1000)], 2).unwrap();
    assert_eq!(nearest.moves().map(|one| one.from).collect::<Vec<_>>(), [3]);
}

#[test]
fn a_far_node_receives_once_and_shares_out() {
    let sources = [0, 1].map(|rank| holding(rank, 0..1200));
    let targets: Vec<Holding> = (4..8).map(|rank| holding(rank, 0..1200)).collect();
    let movement = spread(&sources, &targets, 4).unwrap();
    assert_eq!((sent(&movement), crossing(&movement, 4)), (4 * 1200, 1200));
    assert_eq!([0, 1].map(|rank| sent_by(&movement, rank)), [600; 2]);
    assert_eq!([4, 5, 6, 7].map(|rank| sent_by(&movement, rank)), [3 * 300; 4]);
}

#[test]
fn a_sum_to_all_who_have_parts_is_a_reduce_scatter_and_an_all_gather() {
    let ranks = |ranks: std::ops::Range<u32>| ranks.map(|rank| holding(rank, 0..1000)).collect::<Vec<_>>();
    let movement = gather(&ranks(0..4), &ranks(0..4), 8);
    assert_eq!((sent(&movement), movement.rounds.len()), (2 * 3 * 1000, 2));
    assert_eq!([0, 1, 2, 3].map(|rank| (sent_by(&movement, rank), received_by(&movement, rank))), [(1500, 1500); 4]);
    // In two nodes each sum crosses once to where all is added up, and once back.
    let movement = gather(&ranks(0..4), &ranks(0..4), 2);
    assert_eq!((sent(&movement), crossing(&movement, 2), movement.rounds.len()), (2 * 3 * 1000, 2 * 1000, 4));
    for load in [sent_by, received_by].iter().flat_map(|load| (0..4).map(|rank| load(&movement, rank))) {
        assert!(load.abs_diff(1500) <= 4, "{load}");
    }
    // To other ranks than those with parts one more is sent; they add up a third each.
    let movement = gather(&ranks(0..4), &ranks(4..7), 8);
    assert_eq!(sent(&movement), (4 + 3 - 1) * 1000);
    let loads = [4, 5, 6].map(|rank| (sent_by(&movement, rank), received_by(&movement, rank)));
    assert_eq!(loads, [(668, 4 * 334 + 666), (666, 4 * 333 + 667), (666, 4 * 333 + 667)]);
}

#[test]
fn a_nodes_parts_cross_as_one_where_one_of_its_targets_can_add_them_up() {
    let ranks = |ranks: &[u32]| ranks.iter().map(|&rank| holding(rank, 0..60)).collect::<Vec<_>>();
    let in_nodes_of_two = |parts: &[u32], targets: &[u32]| crossing(&gather(&ranks(parts), &ranks(targets), 2), 2);
    assert_eq!(in_nodes_of_two(&[0, 2, 3], &[0, 3]), 60 + 60);
    assert_eq!(in_nodes_of_two(&[0, 2, 3], &[0]), 2 * 60, "nowhere to add them up");
    assert_eq!(in_nodes_of_two(&[0, 4, 5], &[1, 3]), 2 * 60 + 60, "disjoint: where most parts are");
    assert_eq!(in_nodes_of_two(&[0, 2, 4], &[1, 3, 5]), 2 * 60 + 2 * 60);
}

#[test]
fn a_sum_of_nothing_is_zero_and_a_sum_of_one_part_a_copy() {
    let movement = gather(&[holding(0, 0..5)], &[holding(1, 0..9), holding(2, 5..9)], 8);
    assert_eq!((sent(&movement), movement.rounds.len()), (5, 1));
}

/// In nodes of two: ranks 1 and 5 add up an element each, rank 2's part comes straight, the other node's parts as a sum.
#[test]
fn sums_are_added_straight_parts_first_and_then_those_of_nodes() {
    let value = |rank: u32| [2.5, 0.7, 1e16, f64::NAN, -1e16, 3.0][rank as usize];
    let sources = [0, 1, 2, 4, 5].map(|rank| holding(rank, 0..2));
    let targets = [1, 5].map(|rank| holding(rank, 0..2));
    let mut sums = buffers(&targets, |_, _| 0.0);
    carry_out(&gather(&sources, &targets, 2), &buffers(&sources, |rank, _| value(rank)), &mut sums);
    let [p0, p1, p2, _, p4, p5] = [0, 1, 2, 3, 4, 5].map(value);
    let expected = [((p0 + p1) + p2) + (p4 + p5), ((p2 + p4) + p5) + (p0 + p1)];
    assert_eq!(expected.map(f64::to_bits), [8.0_f64, 6.2].map(f64::to_bits), "an order that shows");
    assert_eq!([&sums[1], &sums[5]], [&expected; 2]);
}

#[test]
fn what_nobody_holds_is_named() {
    let error = spread(&[holding(0, 0..5)], &[holding(1, 3..9)], 8).unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("rank 1 needs element 5")), ("argument_invalid", true));
}

/// Whole copies on 1,024 ranks, to and from even shares: a reduce-scatter and an all-gather.
#[test]
fn even_shares_of_many_ranks_move_what_a_reduce_scatter_moves() {
    let (ranks, share) = (1_024_u64, 3_u64);
    let shares: Vec<Holding> =
        (0..ranks).map(|rank| holding(u32::try_from(rank).unwrap(), rank * share..(rank + 1) * share)).collect();
    let wholes: Vec<Holding> = [0, 500, 1_023].map(|rank| holding(rank, 0..ranks * share)).to_vec();
    assert_eq!(sent(&gather(&wholes, &shares, 8)), 3 * (ranks - 1) * share);
    let moves = spread(&shares, &wholes, 8).unwrap();
    assert_eq!(sent(&moves), 3 * (ranks - 1) * share);
    assert_eq!(moves.moves().count(), 3 * 1_024, "one run for each sender and receiver");
}
