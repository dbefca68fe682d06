//! Numbers in messages.

use std::fmt;

/// A whole number with a comma between every three digits.
pub(crate) struct Grouped<T>(pub(crate) T);

impl<T: fmt::Display> fmt::Display for Grouped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.to_string();
        let digits = text.trim_start_matches('-');
        if digits.len() < text.len() {
            f.write_str("-")?;
        }
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comma_separates_every_three_digits() {
        for (number, written) in
            [(0, "0"), (999, "999"), (-999, "-999"), (1_000, "1,000"), (-1_048_576, "-1,048,576"), (100_000, "100,000")]
        {
            assert_eq!(Grouped(number).to_string(), written);
        }
    }
}
