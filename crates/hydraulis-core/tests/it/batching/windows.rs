//! Promises of every packing into context windows, and its equality with a direct implementation of the rule.

use hydraulis_core::batching::windows::{LengthCounts, WindowPacking, Windows};
use hydraulis_core::{Error, Result, WindowError};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::arbitrary::cases;

/// Packs lengths that are read in pieces.
fn packed(lengths: &[i64], window: i64, piece: usize) -> Result<Windows> {
    let mut counts = LengthCounts::new(window)?;
    lengths.chunks(piece).try_for_each(|piece| counts.add(piece))?;
    let mut packing = WindowPacking::new(counts)?;
    while packing.advance(piece) {}
    assert_eq!(packing.packed(), lengths.len());
    let mut filling = packing.fill();
    lengths.chunks(piece).try_for_each(|piece| filling.add(piece))?;
    filling.finish()
}

/// The ids of each window.
fn rows(windows: &Windows) -> Vec<&[i64]> {
    let place = |offset: i64| usize::try_from(offset).unwrap();
    windows.offsets.windows(2).map(|ends| &windows.sequences[place(ends[0])..place(ends[1])]).collect()
}

/// The tokens of each window.
fn tokens(windows: &Windows, lengths: &[i64]) -> Vec<i64> {
    let sum = |row: &[i64]| row.iter().map(|&id| lengths[usize::try_from(id).unwrap()]).sum();
    rows(windows).into_iter().map(sum).collect()
}

/// Packs longest first, each into the window that `choose` picks among those with room, given as (index, room).
fn plain(lengths: &[i64], window: i64, choose: impl Fn(&[(usize, i64)]) -> Option<usize>) -> Vec<i64> {
    let mut sorted = lengths.to_vec();
    sorted.sort_by_key(|&length| std::cmp::Reverse(length));
    let mut rooms: Vec<i64> = Vec::new();
    for length in sorted {
        let fitting: Vec<(usize, i64)> =
            rooms.iter().copied().enumerate().filter(|&(_, room)| room >= length).collect();
        let at = choose(&fitting).unwrap_or_else(|| {
            rooms.push(window);
            rooms.len() - 1
        });
        rooms[at] -= length;
    }
    rooms.iter().map(|room| window - room).collect()
}

/// The fewest windows, by exhaustive search.
fn optimum(lengths: &[i64], window: i64, rooms: &mut Vec<i64>) -> usize {
    let Some((&length, others)) = lengths.split_first() else { return rooms.len() };
    rooms.push(window - length);
    let mut best = optimum(others, window, rooms);
    rooms.pop();
    for at in 0..rooms.len() {
        if rooms[at] >= length {
            rooms[at] -= length;
            best = best.min(optimum(others, window, rooms));
            rooms[at] += length;
        }
    }
    best
}

fn any_lengths(sizes: std::ops::RangeInclusive<usize>) -> impl Strategy<Value = (Vec<i64>, i64)> {
    let window = prop_oneof![Just(1_i64), 2..12_i64, 50..200_i64, Just(4_096_i64)];
    (window, vec((0.0..1.0_f64, any::<bool>()), sizes)).prop_map(|(window, draws)| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "windows are short")]
        let length = |&(share, tail): &(f64, bool)| {
            let tokens = if tail { (window as f64).powf(share) } else { window as f64 * share };
            (tokens as i64).clamp(1, window)
        };
        (draws.iter().map(length).collect(), window)
    })
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn every_sequence_has_one_place_and_no_window_overflows((lengths, window) in any_lengths(1..=400)) {
        let windows = packed(&lengths, window, 7)?;
        let mut ids = windows.sequences.clone();
        ids.sort_unstable();
        prop_assert!(ids.into_iter().eq(0..i64::try_from(lengths.len()).unwrap()));
        prop_assert_eq!(windows.offsets[0], 0);
        prop_assert_eq!(*windows.offsets.last().unwrap(), i64::try_from(lengths.len()).unwrap());
        prop_assert!(tokens(&windows, &lengths).into_iter().all(|tokens| (1..=window).contains(&tokens)));
        // Within a window sequences keep the order of the file.
        prop_assert!(rows(&windows).into_iter().all(<[i64]>::is_sorted));
        prop_assert_eq!(i64::try_from(windows.tokens.0).unwrap(), lengths.iter().sum::<i64>());
        prop_assert!(windows.lower_bound < windows.offsets.len() as u64);
    }

    #[test]
    fn the_windows_are_those_of_best_fit_decreasing((lengths, window) in any_lengths(1..=400)) {
        let best_fit = |fitting: &[(usize, i64)]| fitting.iter().min_by_key(|(at, room)| (*room, *at)).map(|(at, _)| *at);
        let windows = packed(&lengths, window, 64)?;
        let (mut fast, mut slow) = (tokens(&windows, &lengths), plain(&lengths, window, best_fit));
        fast.sort_unstable();
        slow.sort_unstable();
        prop_assert_eq!(&fast, &slow);
        // Johnson's bound, compared to another rule with the same bound.
        let first_fit = plain(&lengths, window, |fitting| fitting.first().map(|(at, _)| *at)).len();
        prop_assert!(9 * fast.len() <= 11 * first_fit + 9);
    }

    #[test]
    fn pieces_of_any_size_give_the_same_windows((lengths, window) in any_lengths(1..=100), piece in 1..200_usize) {
        prop_assert_eq!(packed(&lengths, window, piece)?, packed(&lengths, window, usize::MAX)?);
    }

    #[test]
    fn the_bound_is_never_above_the_optimum((lengths, window) in any_lengths(1..=8)) {
        let windows = packed(&lengths, window, 8)?;
        let optimum = optimum(&lengths, window, &mut Vec::new());
        prop_assert!(windows.lower_bound <= optimum as u64);
        prop_assert!(9 * (windows.offsets.len() - 1) <= 11 * optimum + 6);
    }
}

#[test]
fn sequences_that_cannot_be_packed_are_named() {
    let error = |lengths: &[i64], window| packed(lengths, window, 2).unwrap_err();
    assert_eq!(error(&[], 10), Error::BatchEmpty);
    for value in [0, -4, (1 << 26) + 1] {
        assert_eq!(error(&[1], value), Error::TokenLimit { field: "window_tokens", value, limit: 1 << 26 });
    }
    assert!(matches!(error(&[3, 4, 0], 10), Error::LengthOutOfRange { sequence: 2, length: 0, .. }));
    assert!(matches!(error(&[3, i64::MIN], 10), Error::LengthOutOfRange { sequence: 1, length: i64::MIN, .. }));
    assert_eq!(error(&[i64::MAX], 10).code(), "sequence_too_long");
    let error = packed(&[3, 4, 11, 12, 12, 10], 10, 2).unwrap_err();
    let named = WindowError::LongerThanWindow { too_long: 3, sequences: 6, sequence: 3, length: 12, limit: 10 };
    assert_eq!(error, named.into());
    assert!(
        error
            .to_string()
            .contains("3 of 6 sequences are longer than a window of 10 tokens; the longest is sequence 3, of 12")
    );
}

#[test]
fn lengths_that_change_between_readings_are_refused() {
    let again = |second: &[i64]| {
        let mut counts = LengthCounts::new(10).unwrap();
        counts.add(&[3, 4, 4]).unwrap();
        let mut filling = WindowPacking::new(counts).unwrap().fill();
        filling.add(second).and_then(|()| filling.finish())
    };
    assert!(again(&[4, 3, 4]).is_ok());
    for (second, sequence) in [(vec![3, 4], 2), (vec![3, 3, 4], 1), (vec![3, 4, 4, 4], 3), (vec![3, 4, 99], 2)] {
        assert_eq!(again(&second).unwrap_err(), WindowError::LengthsChanged { sequence }.into());
    }
    assert_eq!(again(&[-1]).unwrap_err().code(), "lengths_invalid");
}
