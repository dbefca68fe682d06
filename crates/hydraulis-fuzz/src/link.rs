//! Converts bytes to the links of a cluster and their traffic.

use arbitrary::{Result, Unstructured};
use hydraulis_core::layout::{Parameter, ParameterTable};
use hydraulis_core::spec::{LayerSplit, LinkRates};
use hydraulis_core::timing::{Link, Traffic};

/// Small enough to simulate transfers in milliseconds.
const MAX_PARAMETERS: u32 = 8;
const MAX_LAYERS: u32 = 12;

/// An unchecked link.
#[derive(Debug)]
pub(crate) struct LinkInput {
    layers: u32,
    head_layers: f64,
    parameters: Vec<Parameter>,
    traffic: Traffic,
}

impl LinkInput {
    /// Reads a link from the bytes; one in four has values at and beyond the limits of a field.
    pub(crate) fn of(u: &mut Unstructured) -> Result<LinkInput> {
        let is_hostile = u.ratio(1, 4)?;
        let layers = if is_hostile && u.ratio(1, 4)? {
            *u.choose(&[0, 1, 1 << 20, u32::MAX])?
        } else {
            u.int_in_range(4..=MAX_LAYERS)?
        };
        let head_layers = if is_hostile && u.ratio(1, 4)? {
            *u.choose(&[f64::NAN, -1.0, f64::MAX, 1e-300, 1e9])?
        } else {
            f64::from(u.int_in_range(0..=40_u8)?) / 8.0
        };
        let number = u.int_in_range(0..=MAX_PARAMETERS)?;
        let parameters = (0..number).map(|index| parameter(u, index, layers, is_hostile)).collect::<Result<_>>()?;
        let rates = LinkRates {
            gigabytes_per_s: rate(u, is_hostile)?,
            gpu_gigabytes_per_s: rate(u, is_hostile)?,
            message_us: *u.choose(if is_hostile {
                &[0.0, -1.0, 5e-324, f64::MAX, f64::NAN]
            } else {
                &[10.0, 0.0, 1e6]
            })?,
        };
        let bytes: &[u32] = if is_hostile { &[2, 8, 9, u32::MAX] } else { &[2, 4, 1, 0, 8] };
        let traffic = Traffic { rates, parameter_bytes: *u.choose(bytes)?, gradient_bytes: *u.choose(bytes)? };
        Ok(LinkInput { layers, head_layers, parameters, traffic })
    }

    /// Creates the link, or returns the core's error.
    pub(crate) fn link(&self) -> hydraulis_core::Result<Link> {
        let split = LayerSplit::new(self.layers, self.head_layers)?;
        Link::new(ParameterTable::new(self.parameters.clone(), split)?, self.traffic)
    }
}

/// A parameter of some thousand elements.
fn parameter(u: &mut Unstructured, index: u32, layers: u32, is_hostile: bool) -> Result<Parameter> {
    let edges = [0, 1, 1 << 32, u64::MAX];
    let size = |u: &mut Unstructured| {
        if is_hostile && u.ratio(1, 8)? { Ok(*u.choose(&edges)?) } else { u.int_in_range(1..=64) }
    };
    let (units, unit_rows, row_elements) = (size(u)?, size(u)?, size(u)?);
    let rows = if is_hostile && u.ratio(1, 8)? { size(u)? } else { units.saturating_mul(unit_rows) };
    let mut layer_groups = vec![u.int_in_range(0..=layers.saturating_add(1))?];
    for _ in 0..u.int_in_range(0..=2)? {
        layer_groups.push(u.int_in_range(0..=layers.saturating_add(1))?);
    }
    if is_hostile && u.ratio(1, 8)? {
        layer_groups.push(u.arbitrary()?);
    } else {
        layer_groups.sort_unstable();
        layer_groups.dedup();
    }
    Ok(Parameter {
        name: format!("parameter {index}"),
        rows,
        row_elements,
        units,
        layer_groups,
        trained: u.arbitrary()?,
    })
}

/// Rates from transfers that every iteration overlaps to transfers much longer than the iteration.
fn rate(u: &mut Unstructured, is_hostile: bool) -> Result<f64> {
    if is_hostile && u.ratio(1, 4)? {
        let edges = [f64::MAX, 5e-324, 1e-300, f64::MIN_POSITIVE, 0.0, -1.0, f64::NAN, f64::INFINITY];
        return Ok(*u.choose(&edges)?);
    }
    Ok(10.0_f64.powi(u.int_in_range(-9..=3)?))
}
