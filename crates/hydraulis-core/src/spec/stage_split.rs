//! The layers of each stage of a pipeline, as a part of its scheme.

use std::fmt;

/// Largest number of stages with a split of their own. It keeps a scheme small enough to copy.
const MAX_STAGES: usize = 16;

/// Number of layers of each stage, written `split:3-9-10-10`; without a list the cost of layers and head decides.
///
/// A stage on slow ranks takes as long as the others if it has fewer layers. The list is a part of the scheme, so that
/// replicas of equal degrees may split the model differently in one iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StageSplit {
    /// Layers of each stage, and 0 after the last one.
    layers: [u8; MAX_STAGES],
}

impl StageSplit {
    /// The split by cost.
    pub const BY_COST: StageSplit = StageSplit { layers: [0; MAX_STAGES] };

    /// The split with these layers of each stage; none unless there are 2 to 16 stages of 1 to 255 layers.
    pub fn of_layers(stages: &[u32]) -> Option<StageSplit> {
        if !(2..=MAX_STAGES).contains(&stages.len()) {
            return None;
        }
        let mut layers = [0; MAX_STAGES];
        for (place, &number) in layers.iter_mut().zip(stages) {
            *place = u8::try_from(number).ok().filter(|&number| number > 0)?;
        }
        Some(StageSplit { layers })
    }

    /// Layers of each stage; empty for the split by cost.
    pub fn layers(self) -> Vec<u32> {
        self.layers.into_iter().take_while(|&number| number > 0).map(u32::from).collect()
    }

    /// Whether cost decides.
    pub fn is_by_cost(self) -> bool {
        self == StageSplit::BY_COST
    }

    /// The split with this text, `split:3-9`; none if the text names no split, and the cause if it is refused.
    pub(crate) fn parse(text: &str) -> Option<Result<StageSplit, String>> {
        let list = text.strip_prefix("split:")?;
        let layers: Option<Vec<u32>> = list.split('-').map(|number| number.trim().parse().ok()).collect();
        let split = layers.and_then(|layers| StageSplit::of_layers(&layers));
        Some(split.ok_or_else(|| format!("'{text}' is no split such as split:3-9: 1 to 255 layers of 2 to 16 stages")))
    }
}

impl fmt::Display for StageSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers: Vec<String> = self.layers().iter().map(u32::to_string).collect();
        write!(f, "split:{}", layers.join("-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_split_has_layers_for_each_of_two_to_sixteen_stages() {
        let split = StageSplit::of_layers(&[3, 255]).unwrap();
        assert_eq!(
            (split.layers(), split.is_by_cost(), split.to_string()),
            (vec![3, 255], false, "split:3-255".into())
        );
        assert!(StageSplit::of_layers(&[1; 16]).is_some() && StageSplit::BY_COST.layers().is_empty());
        for refused in [&[][..], &[5], &[1, 0], &[0, 1], &[1, 256], &[1; 17]] {
            assert_eq!(StageSplit::of_layers(refused), None, "{refused:?}");
        }
        assert!(StageSplit::parse("full:1/4").is_none());
        for refused in ["split:", "split:3", "split:3-0", "split:3--1", "split:3-x", "split:1-256"] {
            assert!(StageSplit::parse(refused).unwrap().is_err(), "{refused}");
        }
    }
}
