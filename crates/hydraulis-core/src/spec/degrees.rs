//! The axes of parallelism inside one replica, and the degree of each.

use std::cmp::Ordering;
use std::fmt;

/// One axis along which a replica is split.
///
/// A new axis needs one more entry here and in [`Axis::ALL`]. The layout of parameters and the runtime define its
/// meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Axis {
    /// Ranks that split each layer's parameters.
    Tensor,
    /// Ranks that split each sequence's tokens.
    Context,
    /// Stages that split the layers.
    Pipeline,
}

impl Axis {
    /// Number of axes.
    pub const COUNT: usize = Axis::ALL.len();
    /// Every axis in the order of a scheme's text. The first axis is innermost in the order of a replica's ranks.
    pub const ALL: [Axis; 3] = [Axis::Tensor, Axis::Context, Axis::Pipeline];

    /// The axis's name in a scheme's text.
    pub fn name(self) -> &'static str {
        match self {
            Axis::Tensor => "tp",
            Axis::Context => "cp",
            Axis::Pipeline => "pp",
        }
    }

    /// The axis's index in [`Axis::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// A degree of 1 or more for each axis.
///
/// The text `tp4,pp2` leaves out degrees of 1; the text `1` stands for degrees that are all 1. The numbering of a
/// replica's ranks has the first axis of [`Axis::ALL`] innermost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Degrees([u16; Axis::COUNT]);

/// A rank's coordinate along each axis of its replica, from 0 to below the axis's degree. Coordinates are ordered as
/// the ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coordinates([u16; Axis::COUNT]);

impl Degrees {
    /// The degrees in the order of [`Axis::ALL`]. `None` if a degree is 0.
    pub fn new(degrees: [u16; Axis::COUNT]) -> Option<Degrees> {
        (!degrees.contains(&0)).then_some(Degrees(degrees))
    }

    /// The degree of one axis.
    pub fn of(self, axis: Axis) -> u16 {
        self.0[axis.index()]
    }

    /// Number of ranks of the replica.
    pub fn ranks(self) -> u64 {
        self.0.iter().map(|&degree| u64::from(degree)).product()
    }

    /// Number of ranks of one stage. The product saturates.
    pub fn stage_ranks(self) -> u32 {
        self.stride(Axis::Pipeline)
    }

    /// Distance in ranks between neighbours along an axis: the product of the degrees inside the axis. The product
    /// saturates.
    pub fn stride(self, axis: Axis) -> u32 {
        self.0[..axis.index()].iter().fold(1, |stride: u32, &degree| stride.saturating_mul(degree.into()))
    }

    /// The number of the rank at these coordinates among the replica's ranks. A number above `u32::MAX` saturates.
    pub fn number(self, coordinates: Coordinates) -> u32 {
        let along = |axis: &Axis| self.stride(*axis).saturating_mul(coordinates.of(*axis).into());
        Axis::ALL.iter().map(along).fold(0, u32::saturating_add)
    }

    /// Whether each coordinate is below its degree.
    pub fn contains(self, coordinates: Coordinates) -> bool {
        Axis::ALL.iter().all(|&axis| coordinates.of(axis) < self.of(axis))
    }

    /// The coordinates of every rank of the replica, in the order of the ranks.
    pub fn coordinates(self) -> impl Iterator<Item = Coordinates> {
        let next = move |at: &Coordinates| self.next(*at);
        std::iter::successors(Some(Coordinates::default()), next)
    }

    fn next(self, Coordinates(mut at): Coordinates) -> Option<Coordinates> {
        let grows = at.iter().zip(self.0).position(|(place, degree)| place + 1 < degree)?;
        at[grows] += 1;
        at[..grows].fill(0);
        Some(Coordinates(at))
    }

    /// The degrees in these parts, 1 for each axis without a part. The error gives the cause of a refusal.
    pub(super) fn parse(parts: &[&str]) -> Result<Degrees, String> {
        if parts == ["1"] {
            return Ok(Degrees([1; Axis::COUNT]));
        }
        if parts.is_empty() {
            return Err("it names no degree; <1> is the scheme of one rank".into());
        }
        let mut degrees = [None; Axis::COUNT];
        for part in parts {
            let (axis, digits) =
                Axis::ALL.iter().find_map(|axis| Some((axis, part.strip_prefix(axis.name())?))).ok_or_else(|| {
                    format!(
                        "'{part}' is not tp, cp or pp with a number, nor none, selective, full, offload or full-offload \
                         at the end"
                    )
                })?;
            let degree: u16 = digits.parse().map_err(|_| format!("'{digits}' is no degree"))?;
            if degrees[axis.index()].replace(degree).is_some() {
                return Err("a degree is given twice".into());
            }
        }
        Degrees::new(degrees.map(|degree| degree.unwrap_or(1))).ok_or_else(|| "a degree is 0".into())
    }
}

impl fmt::Display for Degrees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let above_one = Axis::ALL.iter().filter(|&&axis| self.of(axis) != 1);
        let parts: Vec<String> = above_one.map(|&axis| format!("{}{}", axis.name(), self.of(axis))).collect();
        f.write_str(if parts.is_empty() { "1".into() } else { parts.join(",") }.as_str())
    }
}

impl Coordinates {
    /// The coordinates in the order of [`Axis::ALL`].
    pub fn new(coordinates: [u16; Axis::COUNT]) -> Coordinates {
        Coordinates(coordinates)
    }

    /// The coordinate of one axis.
    pub fn of(self, axis: Axis) -> u16 {
        self.0[axis.index()]
    }

    /// The same coordinates with another coordinate along one axis.
    #[must_use]
    pub fn with(mut self, axis: Axis, coordinate: u16) -> Coordinates {
        self.0[axis.index()] = coordinate;
        self
    }
}

impl Ord for Coordinates {
    fn cmp(&self, other: &Coordinates) -> Ordering {
        self.0.iter().rev().cmp(other.0.iter().rev())
    }
}

impl PartialOrd for Coordinates {
    fn partial_cmp(&self, other: &Coordinates) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn degrees() -> impl Strategy<Value = Degrees> {
        [1..7_u16, 1..7_u16, 1..7_u16].prop_map(|degrees| Degrees::new(degrees).unwrap())
    }

    proptest! {
        #[test]
        fn text_round_trips(degrees in degrees()) {
            let text = degrees.to_string();
            prop_assert_eq!(Degrees::parse(&text.split(',').collect::<Vec<_>>()), Ok(degrees));
        }

        #[test]
        fn coordinates_number_every_rank_once(degrees in degrees()) {
            let all: Vec<Coordinates> = degrees.coordinates().collect();
            prop_assert!(all.iter().map(|&at| u64::from(degrees.number(at))).eq(0..degrees.ranks()));
            prop_assert!(all.is_sorted() && all.iter().all(|&at| degrees.contains(at)));
        }
    }

    #[test]
    fn ranks_are_the_product_of_all_degrees() {
        let degrees = Degrees::new([2, 3, 4]).unwrap();
        assert_eq!((degrees.ranks(), degrees.stage_ranks(), degrees.stride(Axis::Context)), (24, 6, 2));
        let widest = Degrees::new([u16::MAX; 3]).unwrap();
        assert_eq!(widest.ranks(), u64::from(u16::MAX).pow(3));
    }

    #[test]
    fn no_coordinate_reaches_its_degree() {
        let degrees = Degrees::new([2, 3, 4]).unwrap();
        let last = Coordinates::new([1, 2, 3]);
        assert!(degrees.contains(last));
        assert!(Axis::ALL.iter().all(|&axis| !degrees.contains(last.with(axis, degrees.of(axis)))));
        assert_eq!(Degrees::new([2, 0, 4]), None);
    }
}
