//! Moves between any two layouts, carried out on plain buffers.

use std::collections::{BTreeMap, BTreeSet};

use hydraulis_core::layout::{Holding, Move, gather, spread};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::world::at;

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

fn carry_out(moves: &[Move], from: &Buffers, to: &mut Buffers, put: impl Fn(&mut f64, f64)) {
    for one in moves {
        for index in 0..one.elements {
            let value = from[one.from as usize][at(one.from_offset + index)];
            put(&mut to[one.to as usize][at(one.to_offset + index)], value);
        }
    }
}

fn sent(moves: &[Move]) -> u64 {
    moves.iter().filter(|one| one.is_sent()).map(|one| one.elements).sum()
}

fn crossing(moves: &[Move], node: u32) -> u64 {
    moves.iter().filter(|one| one.from / node != one.to / node).map(|one| one.elements).sum()
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

proptest! {
    #[test]
    fn copies_arrive_where_they_are_needed_with_the_least_that_can_be_sent(
        sources in layout(), whole in 0..RANKS, targets in layout(), node in 1..5_u32,
    ) {
        let sources = with_everything(sources, whole);
        let moves = spread(&sources, &targets, node).unwrap();
        let value = |_, element| part(0, element);
        let mut arrived = buffers(&targets, |_, _| -1.0);
        carry_out(&moves, &buffers(&sources, value), &mut arrived, |to, value| *to = value);
        let expected = buffers(&targets, value);
        for (arrived, expected) in arrived.iter().zip(&expected) {
            prop_assert!(arrived.iter().zip(expected).all(|(one, other)| one.to_bits() == other.to_bits()));
        }
        let missing = |ranks: &dyn Fn(u32, u32) -> bool| {
            let lacks = |(rank, element, _): &(u32, u64, u64)| {
                !holders(&sources, *element).iter().any(|&holder| ranks(holder, *rank))
            };
            places(&targets).filter(lacks).count() as u64
        };
        prop_assert_eq!(sent(&moves), missing(&|holder, rank| holder == rank));
        prop_assert_eq!(crossing(&moves, node), missing(&|holder, rank| holder / node == rank / node));
    }

    #[test]
    fn sums_are_those_of_all_parts(sources in layout(), targets in layout()) {
        let sum = |_, element| holders(&sources, element).into_iter().fold(0.0, |sum, rank| sum + part(rank, element));
        let expected = buffers(&targets, sum);
        let parts = buffers(&sources, part);
        let mut sums = buffers(&targets, |_, _| 0.0);
        let moves = gather(&sources, &targets);
        carry_out(&moves, &parts, &mut sums, |to, value| *to += value);
        prop_assert_eq!(format!("{sums:?}"), format!("{expected:?}"));
        let foreign: usize = places(&targets)
            .map(|(rank, element, _)| holders(&sources, element).iter().filter(|&&holder| holder != rank).count())
            .sum();
        prop_assert_eq!(sent(&moves), foreign as u64);
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
    let load = |rank: u32| moves.iter().filter(|one| one.from == rank).map(|one| one.elements).sum::<u64>();
    assert_eq!([0, 1, 2, 3].map(load), [750; 4]);
    // Three long runs each, one for each receiver.
    assert_eq!(moves.len(), 12);
    // In nodes of two, ranks 2 and 3 are as far away as ranks 0 and 1.
    assert_eq!(spread(&sources, &targets, 2).unwrap().len(), 12);
    let near = spread(&sources, &[holding(4, 0..1000)], 5).unwrap();
    assert_eq!(near.iter().map(|one| one.elements).collect::<Vec<_>>(), [250; 4]);
    // A sender of the receiver's own node does it alone.
    let nearest = spread(&[holding(0, 0..1000), holding(3, 0..1000)], &[holding(2, 0..1000)], 2).unwrap();
    assert_eq!((nearest.len(), nearest[0].from), (1, 3));
}

#[test]
fn what_nobody_holds_is_named() {
    let error = spread(&[holding(0, 0..5)], &[holding(1, 3..9)], 8).unwrap_err();
    assert_eq!((error.code(), error.to_string().contains("rank 1 needs element 5")), ("element_unheld", true));
}

/// Whole copies on 1,024 ranks, to and from even shares: a reduce-scatter and an all-gather.
#[test]
fn even_shares_of_many_ranks_move_what_a_reduce_scatter_moves() {
    let (ranks, share) = (1_024_u64, 3_u64);
    let shares: Vec<Holding> =
        (0..ranks).map(|rank| holding(u32::try_from(rank).unwrap(), rank * share..(rank + 1) * share)).collect();
    let wholes: Vec<Holding> = [0, 500, 1_023].map(|rank| holding(rank, 0..ranks * share)).to_vec();
    assert_eq!(sent(&gather(&wholes, &shares)), 3 * (ranks - 1) * share);
    let moves = spread(&shares, &wholes, 8).unwrap();
    assert_eq!(sent(&moves), 3 * (ranks - 1) * share);
    assert_eq!(moves.len(), 3 * 1_024, "one run for each sender and receiver");
}
