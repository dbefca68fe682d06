//! The model whose tensors travel over links, and their type, according to a profile.

use crate::cost::CostProfile;
use crate::error::{LinkError, Result};
use crate::spec::{Dtype, ModelShape};

impl CostProfile {
    /// The model whose parameters and hidden states travel; refused with `link_model` if the profile does not state it.
    pub fn travelling_model(&self) -> Result<&ModelShape> {
        Ok(self.model.as_ref().ok_or_else(|| LinkError::ModelUnknown { profile: self.name.clone() })?)
    }

    /// The type of parameters and hidden states; profiles that do not state it were measured in bf16.
    pub fn travelling_dtype(&self) -> Dtype {
        self.dtype.unwrap_or(Dtype::Bfloat16)
    }
}
