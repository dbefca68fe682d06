//! The type of parameters and activations.

use serde::{Deserialize, Serialize};

/// Type in which a model computes. Gradient sums and master parameters have at least 32 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dtype {
    /// 16 bits, of which 8 are the exponent.
    Bfloat16,
    /// 32 bits.
    Float32,
    /// 64 bits.
    Float64,
}

impl Dtype {
    /// The type's name in documents.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::Bfloat16 => "bfloat16",
            Dtype::Float32 => "float32",
            Dtype::Float64 => "float64",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> u64 {
        match self {
            Dtype::Bfloat16 => 2,
            Dtype::Float32 => 4,
            Dtype::Float64 => 8,
        }
    }

    /// Bytes of an element of gradients, of master parameters, and of the tensors that norms save for backward.
    pub fn wide_bytes(self) -> u64 {
        self.bytes().max(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_have_four_bytes_at_least() {
        assert_eq!((Dtype::Bfloat16.wide_bytes(), Dtype::Float64.wide_bytes()), (4, 8));
    }
}
