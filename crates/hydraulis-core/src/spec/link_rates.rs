//! The rates of a cluster's links.

use std::str::FromStr;

use crate::error::{Error, LinkError, Result};

/// The rates of a cluster's links in each direction, and the latency of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkRates {
    /// Rate at which all links of a node together send and at the same time receive, in 1e9 bytes per second.
    pub gigabytes_per_s: f64,
    /// Rate at which a GPU sends to other GPUs of its node and at the same time receives, in 1e9 bytes per second.
    pub gpu_gigabytes_per_s: f64,
    /// Time of each message in addition to its bytes, in microseconds.
    pub message_us: f64,
}

impl LinkRates {
    /// Smallest rate, one byte per second. Times over slower links would not be finite.
    pub const LEAST: f64 = 1e-9;
    /// Largest rate, above the rate of any wire.
    pub const MOST: f64 = 1e9;
    /// Longest time of a message, a quarter of an hour. Many such messages still take a finite time.
    pub const LONGEST_MESSAGE_US: f64 = 1e9;
    /// Default rate of a GPU inside its node: `NVLink` of an A800, 400 GB/s both ways.
    pub const USUAL_GPU: f64 = 200.0;
    /// Default time of a message, in microseconds.
    pub const USUAL_MESSAGE_US: f64 = 10.0;

    /// The same rates, if they are within the limits. Other rates are refused with `argument_invalid`.
    pub fn checked(self) -> Result<LinkRates> {
        for (field, rate) in
            [("gigabytes_per_s", self.gigabytes_per_s), ("gpu_gigabytes_per_s", self.gpu_gigabytes_per_s)]
        {
            if !(LinkRates::LEAST..=LinkRates::MOST).contains(&rate) {
                return Err(LinkError::Rate { field, value: rate.to_string() }.into());
            }
        }
        if !(0.0..=LinkRates::LONGEST_MESSAGE_US).contains(&self.message_us) {
            return Err(LinkError::MessageTime { value: self.message_us.to_string() }.into());
        }
        Ok(self)
    }
}

/// Reads `NODE[,GPU[,MESSAGE]]` in GB/s, GB/s and microseconds. Other texts are refused with `argument_invalid`, and values
/// outside the limits as in `checked`.
impl FromStr for LinkRates {
    type Err = Error;

    fn from_str(text: &str) -> Result<LinkRates> {
        let numbers: Option<Vec<f64>> = text.split(',').map(|part| part.trim().parse().ok()).collect();
        let (gigabytes_per_s, gpu_gigabytes_per_s, message_us) = match numbers.as_deref() {
            Some(&[node]) => (node, LinkRates::USUAL_GPU, LinkRates::USUAL_MESSAGE_US),
            Some(&[node, gpu]) => (node, gpu, LinkRates::USUAL_MESSAGE_US),
            Some(&[node, gpu, message]) => (node, gpu, message),
            _ => return Err(LinkError::Syntax { value: text.to_owned() }.into()),
        };
        LinkRates { gigabytes_per_s, gpu_gigabytes_per_s, message_us }.checked()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_up_to_three_numbers() {
        let rates = |text: &str| {
            text.parse().map(|one: LinkRates| [one.gigabytes_per_s, one.gpu_gigabytes_per_s, one.message_us])
        };
        assert_eq!(rates("100"), Ok([100.0, 200.0, 10.0]));
        assert_eq!(rates("100, 300"), Ok([100.0, 300.0, 10.0]));
        assert_eq!(rates("100,300,0"), Ok([100.0, 300.0, 0.0]));
        assert_eq!(rates("1e-9,1e9,1e9"), Ok([1e-9, 1e9, 1e9]));
        for bad in ["", "1,2,3,4", "fast", "1,,2"] {
            assert!(matches!(rates(bad), Err(Error::Link(LinkError::Syntax { .. }))), "{bad}");
        }
        for bad in ["0", "-1", "100,0", "NaN", "inf", "1e10", "1e-12", "100,1e-300"] {
            assert!(matches!(rates(bad), Err(Error::Link(LinkError::Rate { .. }))), "{bad}");
        }
        for bad in ["100,200,-1", "1,1,inf", "1,1,NaN", "1,1,1e10"] {
            assert!(matches!(rates(bad), Err(Error::Link(LinkError::MessageTime { .. }))), "{bad}");
        }
        assert_eq!(rates("0").unwrap_err().code(), "argument_invalid");
    }

    #[test]
    fn a_refusal_states_the_limits() {
        let slow = "1e-12".parse::<LinkRates>().unwrap_err().to_string();
        assert!(slow.starts_with("gigabytes_per_s is 0.000000000001: ") && slow.contains("1e-9 and 1e9;"), "{slow}");
        let long = "1,1,1e10".parse::<LinkRates>().unwrap_err().to_string();
        assert!(long.starts_with("message_us is 10000000000: ") && long.contains("0 and 1e9;"), "{long}");
    }
}
