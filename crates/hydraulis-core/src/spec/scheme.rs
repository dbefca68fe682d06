//! How one replica is cut.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The degrees <tp, cp, pp> of one replica: it runs on tp x cp x pp ranks.
///
/// Written `<tp4,pp2>`, degrees of 1 left out, `<1>` for all ones. The ranks of a stage are a block: tensor
/// ranks innermost, so that each tensor group is consecutive, context ranks around them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Scheme {
    tp: u16,
    cp: u16,
    pp: u16,
}

impl Scheme {
    /// A scheme of the given degrees, each at least 1.
    pub fn new(tp: u16, cp: u16, pp: u16) -> Result<Scheme> {
        let scheme = Scheme { tp, cp, pp };
        if tp == 0 || cp == 0 || pp == 0 {
            return Err(Error::SchemeSyntax { text: scheme.to_string(), why: "a degree is 0".into() });
        }
        Ok(scheme)
    }

    /// Tensor-parallel degree.
    pub fn tp(self) -> u16 {
        self.tp
    }

    /// Context-parallel degree.
    pub fn cp(self) -> u16 {
        self.cp
    }

    /// Pipeline stages.
    pub fn pp(self) -> u16 {
        self.pp
    }

    /// Pipeline stages, as a count of things.
    pub fn stages(self) -> usize {
        usize::from(self.pp)
    }

    /// Ranks of one stage.
    pub fn block(self) -> u32 {
        u32::from(self.tp) * u32::from(self.cp)
    }

    /// Ranks of the replica.
    pub fn ranks(self) -> u64 {
        u64::from(self.block()) * u64::from(self.pp)
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let degrees: Vec<String> = [("tp", self.tp), ("cp", self.cp), ("pp", self.pp)]
            .iter()
            .filter(|(_, degree)| *degree != 1)
            .map(|(name, degree)| format!("{name}{degree}"))
            .collect();
        if degrees.is_empty() { f.write_str("<1>") } else { write!(f, "<{}>", degrees.join(",")) }
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(text: &str) -> Result<Scheme> {
        let wrong = |why: &str| Error::SchemeSyntax { text: text.into(), why: why.into() };
        let inner = text.trim().strip_prefix('<').and_then(|rest| rest.strip_suffix('>'));
        let inner = inner.ok_or_else(|| wrong("it is not written between < and >"))?;
        if inner.trim() == "1" {
            return Scheme::new(1, 1, 1);
        }
        let mut degrees = [None; 3];
        for part in inner.split(',').map(str::trim) {
            let (index, digits) = ["tp", "cp", "pp"]
                .iter()
                .enumerate()
                .find_map(|(index, name)| Some((index, part.strip_prefix(name)?)))
                .ok_or_else(|| wrong(&format!("'{part}' is not tp, cp or pp with a number")))?;
            let degree: u16 = digits.parse().map_err(|_| wrong(&format!("'{digits}' is no degree")))?;
            if degrees[index].replace(degree).is_some() {
                return Err(wrong("a degree is given twice"));
            }
        }
        let [tp, cp, pp] = degrees.map(|degree| degree.unwrap_or(1));
        Scheme::new(tp, cp, pp)
    }
}

impl TryFrom<String> for Scheme {
    type Error = Error;
    fn try_from(text: String) -> Result<Scheme> {
        text.parse()
    }
}

impl From<Scheme> for String {
    fn from(scheme: Scheme) -> String {
        scheme.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trips() {
        for text in ["<1>", "<tp4>", "<cp8>", "<pp3>", "<tp16,pp2>", "<tp4,cp2>", "<tp2,cp3,pp4>"] {
            assert_eq!(text.parse::<Scheme>().unwrap().to_string(), text);
        }
        assert_eq!("<pp2, cp3,tp4>".parse::<Scheme>().unwrap().to_string(), "<tp4,cp3,pp2>");
    }

    #[test]
    fn all_degrees_count_as_ranks() {
        let scheme: Scheme = "<tp2,cp3,pp4>".parse().unwrap();
        assert_eq!((scheme.block(), scheme.ranks(), scheme.stages()), (6, 24, 4));
    }

    #[test]
    fn anything_else_is_refused_by_name() {
        for text in ["", "tp4", "<>", "<tp0>", "<cp0>", "<tp4,tp2>", "<dp2>", "<tp>", "<tp70000>", "<2>"] {
            assert_eq!(text.parse::<Scheme>().unwrap_err().code(), "scheme_syntax", "{text}");
        }
    }
}
