//! A figure of memory that differs from stage to stage.

use serde::{Deserialize, Serialize};

/// A profile's figure of a scheme's stages: one number, which is the fullest stage's and stands for all, or each
/// stage's own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "expected a number, or a list of one for each stage")]
pub enum PerStage<T> {
    /// The fullest stage's figure; the other stages' are unknown and count as equal to it.
    Fullest(T),
    /// The figure of each stage.
    Each(Vec<T>),
}

impl<T: Copy> PerStage<T> {
    /// The figures of all stages; a single one is stored as a number.
    pub fn each(figures: Vec<T>) -> PerStage<T> {
        match figures[..] {
            [only] => PerStage::Fullest(only),
            _ => PerStage::Each(figures),
        }
    }

    /// The figure of a stage, its own or the fullest's.
    pub fn of(&self, stage: usize) -> T {
        match self {
            PerStage::Fullest(figure) => *figure,
            PerStage::Each(figures) => figures[stage],
        }
    }

    /// All stated figures.
    pub fn stated(&self) -> &[T] {
        match self {
            PerStage::Fullest(figure) => std::slice::from_ref(figure),
            PerStage::Each(figures) => figures,
        }
    }

    /// Whether each stage's own figure is known.
    pub fn is_known(&self) -> bool {
        matches!(self, PerStage::Each(_))
    }

    /// Whether these can be the figures of `stages` stages.
    pub(super) fn is_for(&self, stages: usize) -> bool {
        match self {
            PerStage::Fullest(_) => true,
            PerStage::Each(figures) => figures.len() == stages,
        }
    }
}
